"""KV events: what an engine says of its prefix cache, per cache group.

- Hashes are the engine's own (64 bits); the router's chain is another thing and is made from `token_ids`
  and `parent` by the replica's adapter.
- An attention group lists every block of a stored run; a state group lists only the checkpoints it keeps, so its
  hashes must never be zipped with token chunks: a state's depth is its hash's depth in the attention group.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NewType

import msgspec

EngineHash = NewType("EngineHash", int)
"""An engine's block hash: the low 64 bits, unsigned."""


class GroupKind(StrEnum):
    ATTENTION = "attention"
    STATE = "state"
    """Linear attention, Mamba, KDA: checkpoints of a recurrent state."""


class Tier(StrEnum):
    GPU = "gpu"
    HOST = "host"
    STORE = "store"


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag="stored", omit_defaults=True):
    """Blocks that are now cached. `token_ids`: a uint32 buffer of the run's tokens (attention groups)."""

    group: int
    kind: GroupKind
    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    block_tokens: int
    token_ids: bytes = b""
    tier: Tier = Tier.GPU


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="removed", omit_defaults=True):
    group: int
    hashes: tuple[EngineHash, ...]
    tier: Tier = Tier.GPU


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="cleared"):
    """The whole cache of this engine is void, in every group."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events in the order they happened. `sequence` grows by one; a gap means batches were lost."""

    sequence: int
    time_s: float
    events: tuple[KVEvent, ...]


class KVLedger:
    """The hashes resident in each cache group, folded from events; what `stats` and status pages show.

    Duplicates of a hash within a group count once: two physical copies are one residency.
    """

    def __init__(self) -> None:
        self._groups: dict[int, set[EngineHash]] = {}
        self.kinds: dict[int, GroupKind] = {}

    def apply(self, events: Iterable[KVEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self.kinds[event.group] = event.kind
                    self._groups.setdefault(event.group, set()).update(event.hashes)
                case BlockRemoved():
                    self._groups.setdefault(event.group, set()).difference_update(event.hashes)
                case AllBlocksCleared():
                    for hashes in self._groups.values():
                        hashes.clear()

    def resident(self, group: int) -> frozenset[EngineHash]:
        return frozenset(self._groups.get(group, ()))

    def counts(self) -> dict[int, int]:
        """Blocks resident, by group."""
        return {group: len(hashes) for group, hashes in sorted(self._groups.items())}
