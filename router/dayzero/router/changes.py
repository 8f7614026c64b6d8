"""Changes: what a replica says of its prefix cache, in chain hashes. No token ids, no engine's hashes.

- Residency, not copies: storing what is there, or removing what is not, changes nothing.
- A hash is 16 bytes; `hashes` joins them (`chain.split`). `units` says how deep the first of a run ends, in units of
  the chain; hashes of an attention group's run follow each other block by block.
- What is sent is MessagePack arrays: a tag and the fields.
"""

from enum import StrEnum

import msgspec


class Tier(StrEnum):
    """Where cached blocks lie, fastest first."""

    GPU = "gpu"
    HOST = "host"
    STORE = "store"


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Blocks, or state checkpoints, that are now cached in one group. `units`: depth of the first hash's end."""

    group: int
    hashes: bytes
    units: int
    tier: Tier = Tier.GPU


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    group: int
    hashes: bytes
    tier: Tier = Tier.GPU


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Nothing is cached any more, in any group or tier."""


Change = Stored | Removed | Cleared


class Layout(msgspec.Struct, frozen=True):
    """How a replica caches, as its RUNNING engine resolved it.

    `unit_tokens`: the step of a prefix hit; it divides `block_tokens`. A prefix is reusable where all
    `attention_groups` cover it and every one of `state_groups` holds a checkpoint exactly there.
    """

    unit_tokens: int
    block_tokens: int
    attention_groups: tuple[int, ...]
    state_groups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.unit_tokens < 1 or self.block_tokens < 1 or self.block_tokens % self.unit_tokens:
            raise ValueError(
                f"a unit of {self.unit_tokens} tokens does not divide blocks of {self.block_tokens}"
            )
        if not self.attention_groups:
            raise ValueError("a layout needs an attention group: depth is told by its blocks")


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one replica's engine; residency of another life is void. `blocks`: what its cache can hold."""

    replica: str
    incarnation: str
    model: str
    layout: Layout
    blocks: int


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A part of a snapshot: everything cached in one group and tier. `units`: 4 bytes (uint32) a hash, its depth."""

    group: int
    tier: Tier
    hashes: bytes
    units: bytes
