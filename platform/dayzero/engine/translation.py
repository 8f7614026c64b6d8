"""ChainTranslator: one engine's KV events (its hashes, its token ids) → changes in chain hashes, for the router.

- An attention run is named by its parent's name and its token ids; the engine's hashes only tell which is which.
- A state is named by its engine hash: it is the hash of the attention block, whole or partial, that ends there. An
  engine may list it before that block; it is held back until then.
- A prompt's partial tail has a parent that no event ever named; it is named by the request that stored it, if that
  was admitted here and its ids agree with the event's.
- What cannot be named is left out and counted in `unresolved`, never guessed. A gap in the sequence: all is void, and
  what was stored before it stays unnamed until it is stored again.
- A name is kept while some group and tier holds its block. vLLM needs no more: the parent of a run is a block of
  the request that stores it, referenced and so not evicted. Memory is bounded by the engine's cache.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from dayzero.engine.errors import EngineError
from dayzero.engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    GroupKind,
    KVEvent,
    KVEventBatch,
)
from dayzero.engine.protocol import EngineInfo
from dayzero.engine.translation_prompts import AdmittedPrompts
from dayzero.engine.types import EngineRequest
from dayzero.router.chain import TOKEN_BYTES, ChainHash, Namespace, extend
from dayzero.router.changes import Change, Cleared, Held, Layout, Life, Removed, Stored, Tier

Place = tuple[int, Tier]
"""A cache group and a tier."""

Name = tuple[ChainHash, int]
"""A prefix, and its depth in units."""

_MAX_WAITING = 65_536


def life_of(info: EngineInfo, replica: str) -> Life:
    """Raises EngineError where groups have blocks of different sizes: the chain's rule of reuse has one."""
    sizes = {group.block_tokens for group in info.cache_groups}
    if len(sizes) != 1:
        raise EngineError(
            f"cache groups with blocks of {sorted(sizes)} tokens: route this replica by load alone"
        )

    def groups(kind: GroupKind) -> tuple[int, ...]:
        return tuple(group.group for group in info.cache_groups if group.kind is kind)

    layout = Layout(
        unit_tokens=info.match_unit_tokens,
        block_tokens=sizes.pop(),
        attention_groups=groups(GroupKind.ATTENTION),
        state_groups=groups(GroupKind.STATE),
    )
    return Life(
        replica=replica,
        incarnation=info.incarnation,
        model=info.model,
        layout=layout,
        blocks=info.cache_blocks,
    )


class ChainTranslator:
    """One engine's life; batches go in in order. `unresolved`: blocks and states that were left out so far."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.unresolved = 0
        self._prompts = AdmittedPrompts(life.model, life.layout)
        self._names: dict[EngineHash, Name] = {}
        self._held: dict[Place, dict[EngineHash, None]] = {}
        self._waiting: dict[EngineHash, set[Place]] = {}
        self._due: int | None = None

    def admit(self, request: EngineRequest) -> None:
        """Call it before the engine gets the request; costs nothing unless the unit is finer than the block."""
        self._prompts.admit(request)

    def translate(self, batch: KVEventBatch) -> tuple[Change, ...]:
        """A batch that came before gives nothing; one after a gap begins with `Cleared`."""
        if self._due is not None and batch.sequence < self._due:
            return ()
        lost = self._due is not None and batch.sequence > self._due
        self._due = batch.sequence + 1
        changes: list[Change] = []
        if lost:
            self._forget()
            changes.append(Cleared())
        for event in batch.events:
            changes += self._event(event)
        return tuple(_joined(changes))

    def held(self) -> tuple[Held, ...]:
        """Everything that is cached and has a name."""
        return tuple(self._part(place, names) for place, names in sorted(self._held.items()) if names)

    def _part(self, place: Place, hashes: Iterable[EngineHash]) -> Held:
        names = [self._names[value] for value in hashes]
        units = b"".join(depth.to_bytes(4, "little") for _, depth in names)
        return Held(*place, b"".join(chain for chain, _ in names), units)

    # -- events ------------------------------------------------------------------------------------

    def _event(self, event: KVEvent) -> Iterator[Change]:
        match event:
            case BlockStored():
                layout = self.life.layout
                if event.group in layout.attention_groups:
                    yield from self._stored_blocks(event)
                elif event.group in layout.state_groups:
                    yield from self._stored_states(event)
                else:
                    self.unresolved += len(event.hashes)
            case BlockRemoved():
                yield from self._removed(event)
            case AllBlocksCleared():
                self._forget()
                yield Cleared()

    def _stored_blocks(self, event: BlockStored) -> Iterator[Change]:
        names = self._name(event)
        if names is None:
            self.unresolved += len(event.hashes)
            return
        for value, name in zip(event.hashes, names, strict=True):
            self._names[value] = name
        held = self._held.setdefault((event.group, event.tier), {})
        held.update(dict.fromkeys(event.hashes))
        yield Stored(event.group, b"".join(chain for chain, _ in names), names[0][1], event.tier)
        if self._waiting:
            for value in event.hashes:
                yield from self._no_longer_waiting(value)

    def _name(self, event: BlockStored) -> list[Name] | None:
        """The names of a run's blocks; None where it cannot be named, or names that contradict those it had."""
        layout = self.life.layout
        step, rest = divmod(event.block_tokens, layout.unit_tokens)
        if (
            rest
            or event.block_tokens not in (layout.unit_tokens, layout.block_tokens)
            or not event.hashes
            or len(event.token_ids) != len(event.hashes) * event.block_tokens * TOKEN_BYTES
            or event.more_than_tokens
        ):
            return None
        names = self._named_by_parent(event, step)
        if names is None and len(event.hashes) == 1 and step == 1:
            tail = self._prompts.tail(event.request_id, event.token_ids)
            names = None if tail is None else [tail]
        if names is None or any(
            self._names.get(value, name) != name for value, name in zip(event.hashes, names, strict=True)
        ):
            return None
        return names

    def _named_by_parent(self, event: BlockStored, step: int) -> list[Name] | None:
        layout = self.life.layout
        before: Name | None
        if event.parent is None:
            before = (Namespace(self.life.model, layout.unit_tokens, event.salt, event.lora).root(), 0)
        else:
            before = self._names.get(event.parent)
        if before is None or before[1] % step:
            return None
        chain, start = before
        hashes = extend(chain, event.token_ids, layout.unit_tokens)[step - 1 :: step]
        return [(name, start + step * i) for i, name in enumerate(hashes, 1)]

    def _stored_states(self, event: BlockStored) -> Iterator[Change]:
        place = (event.group, event.tier)
        for value in event.hashes:
            if value in self._names:
                yield self._stored_state(value, place)
                continue
            self._waiting.setdefault(value, set()).add(place)
            if len(self._waiting) > _MAX_WAITING:
                self.unresolved += len(self._waiting.pop(next(iter(self._waiting))))

    def _stored_state(self, value: EngineHash, place: Place) -> Stored:
        chain, units = self._names[value]
        self._held.setdefault(place, {})[value] = None
        return Stored(place[0], chain, units, place[1])

    def _no_longer_waiting(self, value: EngineHash) -> Iterator[Stored]:
        for place in sorted(self._waiting.pop(value, ())):
            yield self._stored_state(value, place)

    def _removed(self, event: BlockRemoved) -> Iterator[Change]:
        place = (event.group, event.tier)
        held = self._held.get(place, {})
        gone = []
        for value in event.hashes:
            if value in held:
                del held[value]
                gone.append(self._names[value][0])
                self._drop_unheld(value)
            elif place in self._waiting.get(value, ()):
                self._waiting[value].discard(place)
                self.unresolved += 1
                if not self._waiting[value]:
                    del self._waiting[value]
        if gone:
            yield Removed(event.group, b"".join(gone), event.tier)

    def _drop_unheld(self, value: EngineHash) -> None:
        if not any(value in held for held in self._held.values()):
            del self._names[value]

    def _forget(self) -> None:
        self._names.clear()
        self._held.clear()
        self._waiting.clear()


def _joined(changes: Iterable[Change]) -> Iterator[Change]:
    """Engines remove one hash an event; removals that follow each other become one."""
    for key, run in groupby(changes, lambda c: (c.group, c.tier) if isinstance(c, Removed) else None):
        if key is None:
            yield from run
        else:
            yield Removed(
                key[0], b"".join(change.hashes for change in run if isinstance(change, Removed)), key[1]
            )
