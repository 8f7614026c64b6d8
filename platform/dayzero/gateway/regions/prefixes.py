"""What regions tell one another of cached prefixes: this region's residency as digests, and a peer's digest, read.

A digest is made where residency lives, on the event loop, and 100,000 names take 10 ms there: one made lately is told
again, since peers read no more often.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dayzero.router.chain import Chain
from dayzero.router.digest import PrefixDigest
from dayzero.router.residency import Residency

KEPT_S = 2.0


class ResidencyDigests:
    """`Digests` of this region. `residencies`: by model."""

    def __init__(
        self, residencies: Mapping[str, Residency], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._residencies = residencies
        self._clock = clock
        self._made: dict[str, tuple[float, PrefixDigest]] = {}

    def version(self, model: str) -> int | None:
        """None while no replica of the model has said what it caches."""
        digest = self._digest(model)
        return None if digest is None else int(digest.version, 16)

    def encoded(self, model: str) -> bytes | None:
        digest = self._digest(model)
        return None if digest is None else digest.encode()

    def _digest(self, model: str) -> PrefixDigest | None:
        residency = self._residencies.get(model)
        if residency is None or not residency.lives:
            self._made.pop(model, None)
            return None
        now_s = self._clock()
        made_s, digest = self._made.get(model, (-KEPT_S, None))
        if digest is None or now_s - made_s >= KEPT_S:
            digest = residency.digest()
            self._made[model] = now_s, digest
        return digest


@dataclass(frozen=True, slots=True)
class PeerPrefixes:
    """`KnownPrefixes` of a peer."""

    digest: PrefixDigest

    @classmethod
    def read(cls, data: bytes) -> "PeerPrefixes":
        """Raises DigestError."""
        return cls(PrefixDigest.decode(data))

    def unit_sizes(self) -> frozenset[int]:
        return frozenset(self.digest.names)

    def depth_tokens(self, chains: Mapping[int, Chain]) -> int:
        return max((self.digest.depth_tokens(chain) for chain in chains.values()), default=0)
