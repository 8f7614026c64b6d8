"""BlockManager: the prefix cache of one replica as vLLM 0.32 keeps it, in hybrid models too. Pure; no clock.

- A hit is the deepest position that every attention group covers and that has a checkpoint in every state group;
  at most the prompt less one token. Salts never share.
- Where attention reaches deeper than any state, that depth is a junction: the request that saw it (the second
  sibling of a prefix) leaves a checkpoint there, and the third hits.
- Blocks are cached when a step is scheduled, generated tokens' blocks included; a block is evicted (an event
  with one hash) when it is taken again, never earlier.
- Events are those of `kv_events`; `take_events` gives them in the order they happened.
- `allocate` either gets all blocks of a step or changes nothing that another request can see, but for states
  that nobody reads any more.

Not modelled: blocks larger in one group than in another (decode context parallelism), sliding windows, LoRA
and media in hashes, speculative look-ahead, transfers between replicas.
"""

from dataclasses import dataclass, field

from dayzero.engine.block_manager_groups import (
    AttentionGroup,
    Geometry,
    Group,
    Holding,
    StateGroup,
    blocks_for,
)
from dayzero.engine.block_manager_hashes import TokenChain
from dayzero.engine.block_manager_pool import Block, BlockPool
from dayzero.engine.kv_events import GroupKind, KVEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """A replica's cache. `groups`: the kind of each cache group, in the engine's order.

    `unit_tokens`: how finely a prefix may match (vLLM's `prefix-match-unit`); it divides `block_tokens`, and
    differs from it only in hybrid models. `retention_interval_tokens`: 0 keeps states at prompt tails and
    junctions alone, N keeps one every N tokens too, None keeps all. `blocks`: physical blocks, the null block
    included, shared by all groups.
    """

    groups: tuple[GroupKind, ...]
    block_tokens: int
    unit_tokens: int
    blocks: int
    retention_interval_tokens: int | None = 0

    def __post_init__(self) -> None:
        if GroupKind.ATTENTION not in self.groups:
            raise ValueError("a layout needs an attention group: depth is told by its blocks")
        if self.block_tokens % self.unit_tokens:
            raise ValueError(
                f"unit_tokens {self.unit_tokens} does not divide block_tokens {self.block_tokens}"
            )
        if not self.hybrid and self.unit_tokens != self.block_tokens:
            raise ValueError("without state groups hits land on blocks: unit_tokens must be block_tokens")
        interval = self.retention_interval_tokens
        if interval is not None and (interval < 0 or interval % self.block_tokens):
            raise ValueError(f"retention_interval_tokens {interval} is no multiple of {self.block_tokens}")

    @property
    def hybrid(self) -> bool:
        return GroupKind.STATE in self.groups

    @property
    def fine(self) -> bool:
        return self.unit_tokens < self.block_tokens

    def blocks_for_one(self, tokens: int) -> int:
        """The most blocks one request of so many tokens, alone, ever holds; what a cache must have at least."""
        states = self.groups.count(GroupKind.STATE)
        attention = len(self.groups) - states
        return attention * (blocks_for(tokens, self.block_tokens) + self.fine) + states * (2 + self.fine)


@dataclass(slots=True, eq=False)
class CachedSequence:
    """One request as the cache sees it. `computed_tokens` is moved on by the scheduler after each step.

    `settled`: its last step was one token that left nothing to copy or to drop.
    """

    chain: TokenChain
    prompt_tokens: int
    holdings: list[Holding]
    computed_tokens: int = 0
    junction_tokens: int = 0
    settled: bool = False

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.chain)


@dataclass(frozen=True, slots=True)
class Hit:
    """What the cache has of a prompt: the blocks of each group that cover `tokens`."""

    tokens: int
    tables: list[list[Block]]
    junction_tokens: int


@dataclass(slots=True, kw_only=True)
class BlockManager:
    """See the module's docstring. One step: `new_step`, any number of `allocate`, `end_schedule`."""

    layout: CacheLayout
    pool: BlockPool = field(init=False)
    _geometry: Geometry = field(init=False)
    _groups: list[Group] = field(init=False)
    _attention: tuple[int, ...] = field(init=False)
    _states: tuple[int, ...] = field(init=False)
    _retained: list[list[Block]] = field(init=False)

    def __post_init__(self) -> None:
        layout = self.layout
        self.pool = BlockPool(layout.blocks, layout.groups)
        self._geometry = Geometry(
            layout.block_tokens, layout.unit_tokens, layout.fine, layout.retention_interval_tokens
        )
        self._groups = [
            (AttentionGroup if kind is GroupKind.ATTENTION else StateGroup)(number, self.pool, self._geometry)
            for number, kind in enumerate(layout.groups)
        ]
        self._retained = [[] for _ in self._groups]
        numbered = list(enumerate(layout.groups))
        self._attention = tuple(number for number, kind in numbered if kind is GroupKind.ATTENTION)
        self._states = tuple(number for number, kind in numbered if kind is GroupKind.STATE)

    def sequence(self, prompt_ids: bytes, *, salt: str = "", request_id: str = "") -> CachedSequence:
        """A new request; nothing is looked up or taken yet."""
        chain = TokenChain(prompt_ids, unit_tokens=self.layout.unit_tokens, salt=salt, request_id=request_id)
        return CachedSequence(chain, len(chain), [Holding() for _ in self._groups])

    @property
    def usage(self) -> float:
        """Share of the blocks that running requests hold, 0..1."""
        return 1 - self.pool.free_blocks / self.pool.usable_blocks

    def new_step(self) -> None:
        for group in self._groups:
            group.new_step()

    def end_schedule(self) -> None:
        """The step is scheduled: its copies are queued, their ends need no hold any more."""
        if any(self._retained):
            # By group, not by request: it is the order in which they may be taken again.
            self.pool.release(block for retained in self._retained for block in retained)
            for retained in self._retained:
                retained.clear()

    def lookup(self, sequence: CachedSequence) -> Hit:
        """What is cached of a sequence that holds no blocks; takes nothing."""
        geometry, hashes = self._geometry, sequence.chain.hashes()
        tables: list[list[Block]] = [[] for _ in self._groups]
        found, reach = AttentionGroup.longest_hit(
            self._attention, self.pool, geometry, hashes, sequence.tokens - 1
        )
        tokens = reach
        if self._states:
            states, tokens = StateGroup.longest_hit(self._states, self.pool, geometry, hashes, reach)
            for number, table in zip(self._states, states, strict=True):
                tables[number] = table
        covering = blocks_for(tokens, geometry.block_tokens)
        for number, table in zip(self._attention, found, strict=True):
            tables[number] = table[:covering]
        return Hit(tokens, tables, reach if reach > tokens else 0)

    def allocate(self, sequence: CachedSequence, new_tokens: int, hit: Hit | None = None) -> bool:
        """Blocks for the next `new_tokens` after the hit or what is computed; False where they do not fit.

        A hit is given once, by a sequence that starts; it is admitted only if all it has would fit.
        """
        tables = hit.tables if hit is not None else [[] for _ in self._groups]
        hit_tokens = hit.tokens if hit is not None else 0
        local_tokens = sequence.computed_tokens + hit_tokens
        if (
            hit is not None
            and self._needed(sequence, sequence.tokens, tables, hit_tokens) > self.pool.free_blocks
        ):
            return False
        for group, holding in zip(self._groups, sequence.holdings, strict=True):
            group.drop_unneeded(holding, local_tokens)
        after_tokens = local_tokens + new_tokens
        if self._needed(sequence, after_tokens, tables, hit_tokens) > self.pool.free_blocks:
            return False
        if hit_tokens:
            # Every group's hit before anyone's new block, which might evict another's hit.
            for group, holding, table in zip(self._groups, sequence.holdings, tables, strict=True):
                group.take_hit(holding, table, hit_tokens)
        for group, holding, retained in zip(self._groups, sequence.holdings, self._retained, strict=True):
            group.take_new(holding, after_tokens, retained)
        self._cache(sequence, min(after_tokens, sequence.tokens))
        sequence.settled = (
            new_tokens == 1 and hit is None and all(holding.partial is None for holding in sequence.holdings)
        )
        return True

    def _needed(
        self, sequence: CachedSequence, tokens: int, tables: list[list[Block]], hit_tokens: int
    ) -> int:
        return sum(
            group.blocks_needed(holding, tokens, table, hit_tokens)
            for group, holding, table in zip(self._groups, sequence.holdings, tables, strict=True)
        )

    def _cache(self, sequence: CachedSequence, tokens: int) -> None:
        if self._states and not self._geometry.fine:
            tokens -= tokens % self._geometry.block_tokens
        for group, holding in zip(self._groups, sequence.holdings, strict=True):
            group.cache(holding, sequence.chain, tokens, sequence.prompt_tokens, sequence.junction_tokens)

    def is_quiet(self, sequence: CachedSequence) -> bool:
        """Whether the next single token needs no block and caches none: the step may skip `allocate`."""
        if not sequence.settled:
            return False
        within = sequence.computed_tokens % self._geometry.block_tokens
        return within >= 2 and within + 1 < self._geometry.block_tokens

    def free(self, sequence: CachedSequence) -> None:
        """Give back all blocks; what is cached stays findable. The sequence may start again."""
        for holding in sequence.holdings:
            self.pool.release(reversed(holding.table))
        sequence.holdings = [Holding() for _ in self._groups]
        sequence.computed_tokens = 0
        sequence.settled = False

    def clear(self) -> bool:
        """Void the whole cache; refused (False) while a request holds blocks."""
        return self.pool.clear()

    def take_events(self) -> tuple[KVEvent, ...]:
        return self.pool.take_events()
