"""KV events: what an engine says of its prefix cache, per cache group.

- Hashes are the engine's own (64 bits); the router's chain is another thing and is made from `token_ids`
  and `parent` by the replica's adapter.
- An attention group lists every block of a stored run; a state group lists only the checkpoints it keeps, so its
  hashes must never be zipped with token chunks: a state's depth is its hash's depth in the attention group.
- Events tell of residency, not of copies: a hash may be stored again, and its one removal means that it is gone.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NewType

import msgspec

from dayzero.router.changes import Tier

EngineHash = NewType("EngineHash", int)
"""An engine's block hash: the low 64 bits, unsigned."""


class GroupKind(StrEnum):
    ATTENTION = "attention"
    STATE = "state"
    """Linear attention, Mamba, KDA: checkpoints of a recurrent state."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag="stored", omit_defaults=True):
    """Blocks that are now cached. `token_ids`: a uint32 buffer of the run's tokens (attention groups).

    `salt`, `lora`: the request's, on a run that begins a prompt (`parent` None); runs after it inherit them.
    `request_id`: whose work stored the run; "" where the engine does not say. `more_than_tokens`: what the hashes
    stand for is not in this event (pictures).
    """

    group: int
    kind: GroupKind
    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    block_tokens: int
    token_ids: bytes = b""
    salt: str = ""
    tier: Tier = Tier.GPU
    request_id: str = ""
    lora: str | None = None
    more_than_tokens: bool = False


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


class LastCopies:
    """An engine's own events, one for each physical copy of a block → the seam's, which tell of residency.

    An engine may hold several copies of a hash (a prompt that ends on a block is computed anew there), each stored
    and removed by an event of its own. Here a removal passes on only when the last copy goes.
    """

    def __init__(self) -> None:
        self._copies: Counter[tuple[int, Tier, EngineHash]] = Counter()

    def pass_on(self, events: Iterable[KVEvent]) -> tuple[KVEvent, ...]:
        return tuple(kept for event in events if (kept := self._count(event)) is not None)

    def forget(self) -> None:
        """Events were lost: what is resident is unknown."""
        self._copies.clear()

    def _count(self, event: KVEvent) -> KVEvent | None:
        match event:
            case BlockStored():
                self._copies.update((event.group, event.tier, value) for value in event.hashes)
                return event
            case BlockRemoved():
                gone = tuple(v for v in event.hashes if self._last_goes((event.group, event.tier, v)))
                return msgspec.structs.replace(event, hashes=gone) if gone else None
            case AllBlocksCleared():
                self.forget()
                return event

    def _last_goes(self, key: tuple[int, Tier, EngineHash]) -> bool:
        copies = self._copies[key]
        if copies > 1:
            self._copies[key] = copies - 1
            return False
        self._copies.pop(key, None)
        return copies == 1


class KVLedger:
    """The hashes resident in each cache group, folded from events; what `stats` and status pages show."""

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
