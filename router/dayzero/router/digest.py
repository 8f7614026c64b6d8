"""PrefixDigest: which prefixes a region holds and how deep, small enough to send to its peers every second.

- Pure attention: the blocks at milestone depths, each half again as deep as the one before, so a prompt of 1M tokens
  takes about 25 names and its depth is known within a third. Hybrids: the positions where all groups can resume.
- A name is the first 8 bytes of its chain hash. Names stand sorted, by unit size; at most `MAX_NAMES`, the newest.
- `version` is a hash of the content: equal content, equal version, across restarts too.
- A digest is a hint, and a peer's bytes are outside input: `decode` takes nothing on trust.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dayzero.router.chain import HASH_BYTES, Chain, ChainHash
from dayzero.router.errors import DigestError

WIRE_VERSION = 1
MAX_NAMES = 100_000
_NAME_BYTES = 8
_MAX_UNITS = 1 << 24
_MAX_UNIT_TOKENS = 1 << 24


def _milestones() -> frozenset[int]:
    depths, depth = [], 1
    while depth <= _MAX_UNITS:
        depths.append(depth)
        depth = -(-depth * 3 // 2)
    return frozenset(depths)


MILESTONES = _milestones()
"""Depths in units: 1, 2, 3, 5, 8, 12, …"""

Names = npt.NDArray[np.uint64]


class _Wire(msgspec.Struct, array_like=True, tag=WIRE_VERSION):
    """`sections`: unit size and its names, 8 little-endian bytes each."""

    sections: list[tuple[int, bytes]]


_decoder = msgspec.msgpack.Decoder(_Wire)


@dataclass(frozen=True, slots=True, eq=False)
class PrefixDigest:
    """`names`: by unit size, ascending."""

    names: Mapping[int, Names]
    version: str

    @classmethod
    def of(cls, names: Mapping[int, Names]) -> "PrefixDigest":
        """`names`: each ascending."""
        kept = {unit: names[unit] for unit in sorted(names) if len(names[unit])}
        return cls(kept, xxhash.xxh3_64_hexdigest(_encode(kept)))

    def __len__(self) -> int:
        """Names."""
        return sum(len(names) for names in self.names.values())

    def depth_tokens(self, chain: Chain) -> int:
        """The deepest prefix of the chain that the region tells of; the caller knows that a prompt is never whole."""
        known = self.names.get(chain.unit_tokens)
        if known is None or not len(chain):
            return 0
        asked = np.frombuffer(chain.joined, dtype="<u8")[:: HASH_BYTES // _NAME_BYTES]
        at = np.searchsorted(known, asked)
        at[at == len(known)] = 0
        found = np.flatnonzero(known[at] == asked)
        return (int(found[-1]) + 1) * chain.unit_tokens if len(found) else 0

    def encode(self) -> bytes:
        return _encode(self.names)

    @classmethod
    def decode(cls, data: bytes) -> "PrefixDigest":
        """Raises DigestError for bytes of another version or shape."""
        try:
            wire = _decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
            raise DigestError(f"not a prefix digest of version {WIRE_VERSION}: {e}") from e
        names: dict[int, Names] = {}
        for unit, joined in wire.sections:
            if not 0 < unit <= _MAX_UNIT_TOKENS or unit in names or len(joined) % _NAME_BYTES:
                raise DigestError("a prefix digest with a unit or names that cannot be")
            names[unit] = np.frombuffer(joined, dtype="<u8")
            if not np.all(names[unit][1:] > names[unit][:-1]):
                raise DigestError("a prefix digest whose names are not in order")
        if sum(map(len, names.values())) > MAX_NAMES:
            raise DigestError(f"a prefix digest of more than {MAX_NAMES} names")
        return cls.of(names)


def _encode(names: Mapping[int, Names]) -> bytes:
    sections = [(unit, names[unit].astype("<u8").tobytes()) for unit in sorted(names)]
    return msgspec.msgpack.encode(_Wire(sections))


class Offers:
    """What a digest is made of, kept as it changes; the digest itself is made when asked for."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._names: dict[int, dict[ChainHash, None]] = {}
        self._digest: PrefixDigest | None = None

    def add(self, unit_tokens: int, names: Iterable[ChainHash]) -> None:
        """One told again counts as new."""
        told = self._names.setdefault(unit_tokens, {})
        for name in names:
            if name in told:
                del told[name]  # to come last again
            else:
                self._digest = None
            told[name] = None

    def discard(self, unit_tokens: int, names: Iterable[ChainHash]) -> None:
        told = self._names.get(unit_tokens, {})
        for name in names:
            if name in told:
                del told[name]
                self._digest = None

    def known(self, unit_tokens: int, names: Iterable[ChainHash]) -> list[ChainHash]:
        """Those of `names` that are told."""
        told = self._names.get(unit_tokens)
        return [name for name in names if name in told] if told else []

    def digest(self) -> PrefixDigest:
        if self._digest is None:
            share = self._max_names // max(sum(map(bool, self._names.values())), 1)
            self._digest = PrefixDigest.of({unit: _newest(told, share) for unit, told in self._names.items()})
        return self._digest


def _newest(told: dict[ChainHash, None], count: int) -> Names:
    joined = b"".join(islice(reversed(told), count))
    # Sorted and without doubles: names that agree in 8 bytes are one.
    return np.unique(np.frombuffer(joined, dtype="<u8")[:: HASH_BYTES // _NAME_BYTES])
