"""Chain: a prompt's prefixes, each named by one 128-bit hash; what residency is told in and asked with.

- One hash a unit of tokens, chained: a hash names everything up to its end, so equal hashes mean equal prefixes. A
  prefix's chain is a prefix of the chain. A cache block that ends at a multiple of its size is named by its last unit.
- The hash is ours and depends on nothing of this process: xxh3-128 over the hash before and the unit's little-endian
  uint32 ids. The engine's own hashes may be anything.
- The root holds all else that must tell prefixes apart: this format's version, model, unit, salt and LoRA adapter. A
  picture enters the unit where its placeholder begins.
- 1M tokens in units of 128 take a few milliseconds: a caller on an event loop hashes long prompts elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

import xxhash

VERSION = 1
HASH_BYTES = 16
TOKEN_BYTES = 4

ChainHash = NewType("ChainHash", bytes)
"""16 bytes."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Prompts of different namespaces share no hash. `salt`: the tenant's, never one that a request chose."""

    model: str
    unit_tokens: int
    salt: str = ""
    lora: str | None = None

    def root(self) -> ChainHash:
        """The hash before the first unit."""
        parts = (
            b"dayzero chain",
            VERSION.to_bytes(4, "little"),
            self.model.encode("utf-8", "surrogatepass"),
            self.unit_tokens.to_bytes(8, "little"),
            self.salt.encode("utf-8", "surrogatepass"),
            b"" if self.lora is None else b"+" + self.lora.encode("utf-8", "surrogatepass"),
        )
        framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return ChainHash(xxhash.xxh3_128_digest(framed))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture's place in a prompt: where its placeholder ids begin, and what its bytes hash to."""

    offset_tokens: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt's hashes, joined: 16 bytes for each whole unit."""

    unit_tokens: int
    joined: bytes

    @classmethod
    def of(cls, prompt_ids: bytes, space: Namespace, pictures: Sequence[Picture] = ()) -> "Chain":
        """`prompt_ids`: a uint32 buffer; tokens beyond the last whole unit have no hash."""
        hashes = extend(space.root(), prompt_ids, space.unit_tokens, pictures)
        return cls(space.unit_tokens, b"".join(hashes))

    def __len__(self) -> int:
        """Units."""
        return len(self.joined) // HASH_BYTES

    def hashes(self) -> list[ChainHash]:
        return split(self.joined)


def extend(
    parent: ChainHash, token_ids: bytes, unit_tokens: int, pictures: Sequence[Picture] = ()
) -> list[ChainHash]:
    """The hashes of the whole units of `token_ids` after the prefix that `parent` names.

    `pictures`: those that begin in `token_ids`, offsets counted from its start.
    """
    size = unit_tokens * TOKEN_BYTES
    begun: dict[int, bytes] = {}
    for picture in pictures:
        unit = picture.offset_tokens // unit_tokens
        place = (picture.offset_tokens % unit_tokens).to_bytes(4, "little")
        begun[unit] = (
            begun.get(unit, b"") + place + len(picture.digest).to_bytes(4, "little") + picture.digest
        )
    digest, hashes, before = xxhash.xxh3_128_digest, [], parent
    for unit, at in enumerate(range(0, len(token_ids) - size + 1, size)):
        before = ChainHash(digest(before + token_ids[at : at + size] + begun.get(unit, b"")))
        hashes.append(before)
    return hashes


def split(joined: bytes) -> list[ChainHash]:
    """Joined hashes → each."""
    return [ChainHash(joined[at : at + HASH_BYTES]) for at in range(0, len(joined), HASH_BYTES)]
