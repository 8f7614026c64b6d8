"""The two kinds of cache group: attention (every full block is kept) and state (few checkpoints are).

Both hold one table of blocks a request (`Holding`) and answer the same five questions: what of a prefix is
cached, how many blocks a step needs, take the hit, take new blocks, and cache what is now computed.

- A table covers positions 0 to its end; a hole is the null block. State tables are holes but for the running
  state and the checkpoint before it.
- A hit that ends inside a block is never written to: the request copies the block first (copy on write), and
  both ends of the copy stay referenced until the step is scheduled (`Retained`).
- A state block is written where a prefill chunk ends. A checkpoint is cached only where a later request may
  resume: the end of the prompt rounded down to the unit, a junction, or every retention interval.
- A state cached in a step cannot be read in that same step: its bytes are not there yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dayzero.engine.block_manager_hashes import TokenChain
from dayzero.engine.block_manager_pool import Block, BlockPool, Run
from dayzero.engine.kv_events import EngineHash

Retained = list[Block]
"""Blocks held until the step that copies them is scheduled."""


@dataclass(slots=True)
class Holding:
    """One request's blocks in one group.

    `cached_blocks`: leading blocks that need no caching any more. `partial`: a block hit or cached at a position
    inside it, to be copied before it is written again, and its place in the table.
    """

    table: list[Block] = field(default_factory=list)
    cached_blocks: int = 0
    partial: tuple[int, Block] | None = None
    started: bool = False
    last_state: int | None = None
    retired: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """Token sizes shared by all groups. `fine`: hits may end inside a block, at a unit."""

    block_tokens: int
    unit_tokens: int
    fine: bool
    retention_interval_tokens: int | None

    @property
    def units(self) -> int:
        """Units in a block."""
        return self.block_tokens // self.unit_tokens

    @property
    def alignment_tokens(self) -> int:
        return self.unit_tokens if self.fine else self.block_tokens

    def tail_tokens(self, prompt_tokens: int) -> int:
        """The deepest unit a repeat of the prompt can resume at; its last token is always computed."""
        return max(prompt_tokens - 1, 0) // self.unit_tokens * self.unit_tokens


def blocks_for(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)


class AttentionGroup:
    """Every full block of every request is cached, and the prompt's tail when hits may end inside a block."""

    def __init__(self, number: int, pool: BlockPool, geometry: Geometry) -> None:
        self.number = number
        self._pool = pool
        self._geometry = geometry

    @staticmethod
    def longest_hit(
        groups: Sequence[int],
        pool: BlockPool,
        geometry: Geometry,
        hashes: Sequence[EngineHash],
        limit_tokens: int,
    ) -> tuple[list[list[Block]], int]:
        """The longest run of blocks from the start that all these groups hold, at most `limit_tokens`."""
        tables: list[list[Block]] = [[] for _ in groups]
        units, blocks = geometry.units, 0
        for i in range(min(limit_tokens // geometry.block_tokens, len(hashes) // units)):
            found = pool.find(hashes[(i + 1) * units - 1], groups)
            if found is None:
                break
            blocks += 1
            for table, block in zip(tables, found, strict=True):
                table.append(block)
        hit_tokens = blocks * geometry.block_tokens
        if geometry.fine:
            first = blocks * units
            end = min(first + units - 1, limit_tokens // geometry.unit_tokens, len(hashes))
            for unit in range(end - 1, first - 1, -1):
                found = pool.find(hashes[unit], groups)
                if found is not None:
                    for table, block in zip(tables, found, strict=True):
                        table.append(block)
                    return tables, (unit + 1) * geometry.unit_tokens
        return tables, hit_tokens

    def blocks_needed(self, holding: Holding, tokens: int, hit: Sequence[Block], hit_tokens: int) -> int:
        size = self._geometry.block_tokens
        new = max(blocks_for(tokens, size) - len(holding.table) - len(hit), 0)
        if hit and hit_tokens % size:
            new += 1  # the copy
        return new + sum(block.references == 0 for block in hit)

    def take_hit(self, holding: Holding, hit: Sequence[Block], hit_tokens: int) -> None:
        self._pool.touch(hit)
        holding.table.extend(hit)
        holding.cached_blocks = len(hit)
        size = self._geometry.block_tokens
        if hit and hit_tokens % size:
            place = hit_tokens // size
            holding.partial = (place, hit[-1])
            holding.cached_blocks = place

    def take_new(self, holding: Holding, tokens: int, retained: Retained) -> None:
        if holding.partial is not None:
            place, source = holding.partial
            holding.partial = None
            holding.table[place] = _private_copy(self._pool, source, retained)
        missing = blocks_for(tokens, self._geometry.block_tokens) - len(holding.table)
        if missing > 0:
            holding.table.extend(self._pool.take(missing))

    def drop_unneeded(self, holding: Holding, computed_tokens: int) -> None:
        """Attention reads every position: nothing is dropped before the end."""

    def cache(
        self, holding: Holding, chain: TokenChain, tokens: int, prompt_tokens: int, _junction_tokens: int
    ) -> None:
        geometry = self._geometry
        full = tokens // geometry.block_tokens
        if holding.cached_blocks < full:
            self._pool.store_full(
                Run(chain, self.number, holding.cached_blocks, full, geometry.block_tokens, geometry.units),
                holding.table,
            )
            holding.cached_blocks = full
        if geometry.units > 1:
            tail = geometry.tail_tokens(prompt_tokens)
            place = tail // geometry.block_tokens
            if tail and tail <= tokens and tail % geometry.block_tokens and place < len(holding.table):
                self._pool.store_partial(chain, self.number, holding.table[place], tail, geometry.unit_tokens)

    def new_step(self) -> None:
        """Nothing of an attention group lasts one step only."""


class StateGroup:
    """Checkpoints of a recurrent state: one block each, valid at exactly one position."""

    def __init__(self, number: int, pool: BlockPool, geometry: Geometry) -> None:
        self.number = number
        self._pool = pool
        self._geometry = geometry
        self._cached_this_step: set[EngineHash] = set()

    @staticmethod
    def longest_hit(
        groups: Sequence[int],
        pool: BlockPool,
        geometry: Geometry,
        hashes: Sequence[EngineHash],
        limit_tokens: int,
    ) -> tuple[list[list[Block]], int]:
        """The deepest position that has a checkpoint in all these groups, at most `limit_tokens`."""
        step = 1 if geometry.fine else geometry.units
        deepest = min(limit_tokens // geometry.alignment_tokens, len(hashes) // step)
        for i in range(deepest, 0, -1):
            found = pool.find(hashes[i * step - 1], groups)
            if found is not None:
                tokens = i * geometry.alignment_tokens
                holes = [pool.null] * (blocks_for(tokens, geometry.block_tokens) - 1)
                return [[*holes, block] for block in found], tokens
        return [[] for _ in groups], 0

    def blocks_needed(self, holding: Holding, tokens: int, hit: Sequence[Block], hit_tokens: int) -> int:
        if hit and hit[-1].hash in self._cached_this_step:
            return self._pool.usable_blocks + 1  # not before the next step
        size = self._geometry.block_tokens
        new = blocks_for(tokens, size) - len(hit) - len(holding.table)
        copies = bool(hit and hit_tokens % size) or holding.partial is not None
        if copies:
            new = max(new, 0) + 1
        evictable = sum(block.references == 0 and not block.is_null for block in hit)
        return min(new, 1 + copies) + evictable

    def take_hit(self, holding: Holding, hit: Sequence[Block], hit_tokens: int) -> None:
        self._pool.touch(hit)
        holding.table.extend(hit)
        holding.cached_blocks = len(hit)
        size = self._geometry.block_tokens
        if hit and hit_tokens % size:
            place = hit_tokens // size
            holding.partial = (place, hit[-1])
            holding.cached_blocks = place

    def take_new(self, holding: Holding, tokens: int, retained: Retained) -> None:
        table = holding.table
        required = blocks_for(tokens, self._geometry.block_tokens)
        if required <= len(table) and holding.partial is None:
            holding.started = True
            return
        if table:
            holding.last_state = len(table) - 1
        table.extend([self._pool.null] * (required - 1 - len(table)))
        missing = max(required - len(table), 0)
        new = self._pool.take(missing + (holding.partial is not None))
        if holding.partial is not None:
            self._copy(holding, *holding.partial, new.pop(0), retained)
            holding.partial = None
        table.extend(new)
        holding.started = True

    def _copy(self, holding: Holding, place: int, source: Block, copy: Block, retained: Retained) -> None:
        retained += (source, copy)
        if not holding.started:  # the hit of another request: write to the copy
            holding.table[place] = copy
            copy.references += 1
            return
        # Its own prompt's tail: the request goes on in its block, the cache keeps the copy.
        self._pool.move_hashes(source, copy)
        source.references += 1
        if copy.hash is not None:
            self._cached_this_step.add(copy.hash)

    def drop_unneeded(self, holding: Holding, computed_tokens: int) -> None:
        """Free the states before the newest; a cached one stays findable until its block is taken again."""
        table, size = holding.table, self._geometry.block_tokens
        before = min((computed_tokens - 1) // size, len(table)) if computed_tokens > 1 else 0
        if holding.retired < before:
            freed = []
            for place in range(before - 1, holding.retired - 1, -1):
                if not table[place].is_null:
                    freed.append(table[place])
                    table[place] = self._pool.null
            self._pool.release(freed)
            holding.retired = before
        last = holding.last_state
        if last is not None and last < blocks_for(computed_tokens, size) - 1 and not table[last].is_null:
            self._pool.release([table[last]])
            table[last] = self._pool.null

    def cache(
        self, holding: Holding, chain: TokenChain, tokens: int, prompt_tokens: int, junction_tokens: int
    ) -> None:
        geometry = self._geometry
        size = geometry.block_tokens
        first, full = holding.cached_blocks, tokens // size
        if first < full:
            keep = self._keep(first, full, prompt_tokens, junction_tokens)
            self._pool.store_full(
                Run(chain, self.number, first, full, size, geometry.units), holding.table, keep
            )
            holding.cached_blocks = full
        self._cache_tail(holding, chain, tokens, prompt_tokens)
        for block in holding.table[first:full]:
            if not block.is_null and block.hash is not None:
                self._cached_this_step.add(block.hash)

    def _keep(self, first: int, last: int, prompt_tokens: int, junction_tokens: int) -> list[bool] | None:
        """Which of the blocks hold a checkpoint worth keeping; None means all."""
        geometry = self._geometry
        interval = geometry.retention_interval_tokens
        if interval is None or 0 < interval <= geometry.block_tokens:
            return None
        keep = [False] * (last - first)
        if interval:
            for place in range(first, last):
                keep[place - first] = (place + 1) * geometry.block_tokens % interval == 0
        for position in (prompt_tokens - 1, junction_tokens):
            aligned = position // geometry.alignment_tokens * geometry.alignment_tokens
            place = aligned // geometry.block_tokens - 1
            if first <= place < last:
                keep[place - first] = True
        return keep

    def _cache_tail(self, holding: Holding, chain: TokenChain, tokens: int, prompt_tokens: int) -> None:
        """Cache the state at the prompt's tail when this chunk ended there."""
        geometry = self._geometry
        if not tokens or tokens != geometry.tail_tokens(prompt_tokens):
            return
        place = blocks_for(tokens, geometry.block_tokens) - 1
        if place >= len(holding.table) or holding.table[place].is_null:
            return
        block = holding.table[place]
        block_hash = self._pool.store_partial(chain, self.number, block, tokens, geometry.unit_tokens)
        self._cached_this_step.add(block_hash)
        if tokens % geometry.block_tokens:
            holding.partial = (place, block)
            holding.cached_blocks = place

    def new_step(self) -> None:
        self._cached_this_step.clear()


def _private_copy(pool: BlockPool, source: Block, retained: Retained) -> Block:
    copy = pool.take(1)[0]
    copy.references += 1
    retained += (source, copy)
    return copy


Group = AttentionGroup | StateGroup
