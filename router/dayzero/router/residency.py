"""Residency: what every replica of one model has cached, by cache group and tier, told in chain hashes.

- One index answers for all replicas at once: a table a tier and group, hash → bits, one bit a replica's life.
- What a life holds is void when another life of its replica begins, when it is forgotten (a gap) and when it is
  dropped. What is not known (a replica, a group, a hash that is not there) has no effect, nor has a duplicate.
- Bounded: past `max_blocks` names the oldest of the largest table go. A replica that claims far more than its cache
  can hold has lost removals: its residency is void. Both are counted.
- One event loop owns it. Residency is a hint: a wrong one costs time, never an answer.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from types import MappingProxyType

from dayzero.router.chain import HASH_BYTES, Chain, ChainHash, split
from dayzero.router.changes import Change, Cleared, Held, Layout, Life, Removed, Stored, Tier
from dayzero.router.digest import MILESTONES, Offers, PrefixDigest
from dayzero.router.reuse import Caches, Holders, holders_of, reach

Place = tuple[Tier, int]
"""A tier and a cache group."""

_EVICTED_AT_ONCE = 64
"""One part in so many of the largest table goes at a time: finding a table's oldest entries is not free."""
_CLAIM_FACTOR = 2
_CLAIM_FACTOR_FINE = 4
"""A block has one name, or with a unit finer than the block also that of a prompt's end in it, seldom more."""
_CLAIM_SLACK = 64


@dataclass(frozen=True, slots=True)
class Counts:
    """By replica: names held, and how often the claims of its life passed what its cache can hold.

    `evicted`: names that went for want of room.
    """

    blocks: dict[str, int]
    evicted: int
    voided: dict[str, int]


@dataclass(slots=True)
class _Slot:
    """One life. `held`: its names, the tables turned around; dicts, since the garbage collector walks through sets."""

    number: int
    life: Life
    held: dict[Place, dict[ChainHash, None]] = field(default_factory=dict)
    voided: int = 0

    @property
    def bit(self) -> int:
        return 1 << self.number

    @property
    def names(self) -> int:
        return sum(len(names) for names in self.held.values())

    @property
    def claims_too_much(self) -> bool:
        layout = self.life.layout
        fine = layout.unit_tokens < layout.block_tokens
        most = (_CLAIM_FACTOR_FINE if fine else _CLAIM_FACTOR) * self.life.blocks + _CLAIM_SLACK
        return sum(len(names) for (tier, _), names in self.held.items() if tier is Tier.GPU) > most


class Residency:
    """See the module's docstring."""

    def __init__(self, *, max_blocks: int = 4_000_000) -> None:
        self._max_blocks = max_blocks
        self._tables: dict[Place, dict[ChainHash, int]] = {}
        self._slots: dict[str, _Slot] = {}
        self._by_number: dict[int, _Slot] = {}
        self._free: list[int] = []
        self._layouts: dict[Layout, int] = {}
        self._offers = Offers()
        self._names = 0
        self._evicted = 0
        self._lives: dict[str, Life] = {}
        self.lives: Mapping[str, Life] = MappingProxyType(self._lives)

    # -- lives -------------------------------------------------------------------------------------

    def begin(self, life: Life) -> None:
        """A life that is known already goes on; another of the same replica takes its place, empty."""
        slot = self._slots.get(life.replica)
        if slot is not None:
            if slot.life == life:
                return
            self.drop(life.replica)
        # The lowest number that is free: masks stay as short as there are lives.
        number = heappop(self._free) if self._free else len(self._by_number)
        slot = _Slot(number, life)
        self._slots[life.replica] = self._by_number[number] = slot
        self._lives[life.replica] = life
        self._layouts[life.layout] = self._layouts.get(life.layout, 0) | slot.bit

    def drop(self, replica: str) -> None:
        """The replica is gone."""
        slot = self._slots.get(replica)
        if slot is None:
            return
        self._void(slot)
        del self._slots[replica], self._by_number[slot.number], self._lives[replica]
        heappush(self._free, slot.number)
        layout = slot.life.layout
        self._layouts[layout] &= ~slot.bit
        if not self._layouts[layout]:
            del self._layouts[layout]

    def forget(self, replica: str) -> None:
        """What it holds is unknown from here on (a gap); the life stays, and what it says next counts."""
        slot = self._slots.get(replica)
        if slot is not None:
            self._void(slot)

    # -- changes -----------------------------------------------------------------------------------

    def apply(self, replica: str, changes: Iterable[Change]) -> None:
        slot = self._slots.get(replica)
        if slot is None:
            return
        for change in changes:
            match change:
                case Stored():
                    step = slot.life.layout.block_tokens // slot.life.layout.unit_tokens
                    names = _names(change.hashes)
                    depths = range(change.units, change.units + step * len(names), step)
                    self._store(slot, (change.tier, change.group), names, depths)
                case Removed():
                    self._remove(slot, (change.tier, change.group), _names(change.hashes))
                case Cleared():
                    self._void(slot)
        self._keep_bounds(slot)

    def replace(self, replica: str, held: Iterable[Held]) -> None:
        """A snapshot: the replica has this and nothing else."""
        slot = self._slots.get(replica)
        if slot is None:
            return
        self._void(slot)
        for part in held:
            names = _names(part.hashes)
            if len(part.units) == 4 * len(names):
                depths = struct.unpack(f"<{len(names)}I", part.units)
                self._store(slot, (part.tier, part.group), names, depths)
        self._keep_bounds(slot)

    def _store(self, slot: _Slot, place: Place, names: Sequence[ChainHash], depths: Sequence[int]) -> None:
        layout = slot.life.layout
        if place[1] not in layout.attention_groups and place[1] not in layout.state_groups:
            return
        table, held, bit = self._tables.setdefault(place, {}), slot.held.setdefault(place, {}), slot.bit
        before = len(held)
        for name in names:
            if name not in held:
                held[name] = None
                table[name] = table.get(name, 0) | bit
        self._names += len(held) - before
        if place[0] is Tier.GPU:
            self._offer(slot, names, depths)

    def _remove(self, slot: _Slot, place: Place, names: Iterable[ChainHash]) -> None:
        held = slot.held.get(place)
        if held is None:
            return
        gone = [name for name in names if held.pop(name, ...) is None]
        self._clear_bits(slot, place, gone)

    def _void(self, slot: _Slot) -> None:
        for place, held in slot.held.items():
            self._clear_bits(slot, place, held)
        slot.held.clear()

    def _clear_bits(self, slot: _Slot, place: Place, gone: Collection[ChainHash]) -> None:
        """`gone` is no longer in the slot's own set."""
        table, bit = self._tables[place], slot.bit
        for name in gone:
            left = table[name] & ~bit
            if left:
                table[name] = left
            else:
                del table[name]
        self._names -= len(gone)
        if place[0] is Tier.GPU:
            self._withdraw(slot.life.layout, gone)

    # -- bounds ------------------------------------------------------------------------------------

    def _keep_bounds(self, slot: _Slot) -> None:
        if slot.claims_too_much:
            self._void(slot)
            slot.voided += 1
        while self._names > self._max_blocks:
            self._evict()

    def _evict(self) -> None:
        place, table = max(self._tables.items(), key=lambda item: len(item[1]))
        oldest = list(islice(table.items(), max(len(table) // _EVICTED_AT_ONCE, 1)))
        for name, bits in oldest:
            for slot in self._slots_of(bits):
                self._remove(slot, place, (name,))
                self._evicted += 1

    def _slots_of(self, bits: int) -> Iterator[_Slot]:
        while bits:
            lowest = bits & -bits
            yield self._by_number[lowest.bit_length() - 1]
            bits ^= lowest

    # -- questions ---------------------------------------------------------------------------------

    def unit_sizes(self) -> frozenset[int]:
        """The units of the chains that `reusable` needs."""
        return frozenset(layout.unit_tokens for layout in self._layouts)

    def reusable(
        self, chains: Mapping[int, Chain], prompt_tokens: int, tiers: Sequence[Tier] = (Tier.GPU,)
    ) -> dict[str, int]:
        """Tokens of the prompt that each replica can give. `chains`: by unit size; 0 where the chain is missing."""
        tokens = dict.fromkeys(self._slots, 0)
        for layout, bits in self._layouts.items():
            chain = chains.get(layout.unit_tokens)
            if chain is None:
                continue
            caches = Caches(
                attention=self._holders(layout.attention_groups, tiers),
                states=self._holders(layout.state_groups, tiers) if layout.state_groups else None,
            )
            for who, count in reach(layout, chain, prompt_tokens, bits, caches):
                for slot in self._slots_of(who):
                    tokens[slot.life.replica] = count
        return tokens

    def _holders(self, groups: Sequence[int], tiers: Sequence[Tier]) -> Holders:
        return holders_of([[self._tables.get((tier, group), {}) for tier in tiers] for group in groups])

    def counts(self) -> Counts:
        return Counts(
            blocks={replica: slot.names for replica, slot in self._slots.items()},
            evicted=self._evicted,
            voided={replica: slot.voided for replica, slot in self._slots.items() if slot.voided},
        )

    # -- what peers are told -----------------------------------------------------------------------

    def digest(self) -> PrefixDigest:
        """Cheap while nothing that peers are told has changed."""
        return self._offers.digest()

    def _offer(self, slot: _Slot, names: Sequence[ChainHash], depths: Sequence[int]) -> None:
        """Of names just stored, those that peers are told: checkpoints of hybrids, else blocks at milestones."""
        layout = slot.life.layout
        if layout.state_groups:
            checkpoints = self._tables.get((Tier.GPU, layout.state_groups[0]), {})
            told = [name for name in names if name in checkpoints]
        else:
            told = [name for name, units in zip(names, depths, strict=True) if units in MILESTONES]
        if told:
            has = self._everywhere(layout)
            self._offers.add(layout.unit_tokens, [name for name in told if has(name) & slot.bit])

    def _withdraw(self, layout: Layout, gone: Collection[ChainHash]) -> None:
        told = self._offers.known(layout.unit_tokens, gone)
        if told:
            everywhere = [
                (bits, self._everywhere(other))
                for other, bits in self._layouts.items()
                if other.unit_tokens == layout.unit_tokens
            ]
            lost = [name for name in told if not any(has(name) & bits for bits, has in everywhere)]
            self._offers.discard(layout.unit_tokens, lost)

    def _everywhere(self, layout: Layout) -> Holders:
        """Who can resume at a name, as far as the name itself tells."""
        return self._holders(layout.attention_groups + layout.state_groups, (Tier.GPU,))


def _names(joined: bytes) -> list[ChainHash]:
    """Nothing where the bytes are no whole hashes."""
    return [] if len(joined) % HASH_BYTES else split(joined)
