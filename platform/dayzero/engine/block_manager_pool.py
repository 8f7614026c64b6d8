"""BlockPool: the physical cache blocks of one replica, their reference counts, and who may be evicted next.

- Every group takes its blocks from this one pool. Block 0 is the null block: a hole in a table, never cached.
- A free block keeps its hashes and may be hit until it is taken again; only then are its hashes removed, one
  event each.
- Free order: blocks without a hash go to the front (used first), cached ones to the back (least recently used
  first). Requests free their tables back to front, so that a prefix's tail goes before its head.
- A hash may name several blocks (they are not merged): a lookup finds the one cached first, and removing one
  copy says "removed" although another remains, as vLLM does.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dayzero.engine.block_manager_hashes import TokenChain
from dayzero.engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    GroupKind,
    KVEvent,
)


class Block:
    """One physical block. `hashed_tokens`: the prefix length its first hash stands for."""

    __slots__ = ("aliases", "group", "hash", "hashed_tokens", "is_null", "number", "references")

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_null = number == 0
        self.references = 0
        self.group = 0
        self.hash: EngineHash | None = None
        self.hashed_tokens = 0
        self.aliases: list[EngineHash] = []


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks `first` to `last` (not included) of one request in one group; `units` of the chain make a block."""

    chain: TokenChain
    group: int
    first: int
    last: int
    block_tokens: int
    units: int


class BlockPool:
    """See the module's docstring. `check_integrity` states its invariants as assertions."""

    def __init__(self, blocks: int, groups: Sequence[GroupKind]) -> None:
        if blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks (one is the null block), not {blocks}")
        self._blocks = [Block(number) for number in range(blocks)]
        self.null = self._blocks[0]
        self._free: OrderedDict[Block, None] = OrderedDict.fromkeys(self._blocks[1:])
        self._cached: list[dict[EngineHash, dict[int, Block]]] = [{} for _ in groups]
        self._kinds = tuple(groups)
        self._events: list[KVEvent] = []

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def usable_blocks(self) -> int:
        return len(self._blocks) - 1

    def find(self, block_hash: EngineHash, groups: Sequence[int]) -> list[Block] | None:
        """The block cached under the hash in each of the groups; None where any group lacks it."""
        found = []
        for group in groups:
            copies = self._cached[group].get(block_hash)
            if copies is None:
                return None
            found.append(next(iter(copies.values())))
        return found

    def resident(self, group: int) -> frozenset[EngineHash]:
        """The hashes a lookup in the group finds now."""
        return frozenset(self._cached[group])

    def take(self, count: int) -> list[Block]:
        """The next `count` blocks of the free order; what they held is evicted."""
        assert count <= len(self._free), f"{count} blocks asked for, {len(self._free)} are free"
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self.forget(block)
            block.references = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """One more reader of each block; a free one leaves the free order."""
        for block in blocks:
            if block.is_null:
                continue
            if block.references == 0:
                del self._free[block]
            block.references += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """One reader less of each; those nobody reads become free, in the order given."""
        first: list[Block] = []
        last: list[Block] = []
        for block in blocks:
            if block.is_null:
                continue
            block.references -= 1
            if block.references == 0:
                (first if block.hash is None else last).append(block)
        for block in reversed(first):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        for block in last:
            self._free[block] = None

    def store_full(self, run: Run, table: Sequence[Block], keep: Sequence[bool] | None = None) -> None:
        """Cache a run of a table's blocks, those that `keep` names, holes left out."""
        chain, group = run.chain, run.group
        hashes = chain.hashes()
        stored = []
        for i in range(run.first, run.last):
            block = table[i]
            if block.is_null or (keep is not None and not keep[i - run.first]):
                continue
            if block.hash is not None:  # it held a prompt's tail and is full now
                self.forget(block)
            block_hash = hashes[(i + 1) * run.units - 1]
            self._insert(block, group, block_hash, (i + 1) * run.block_tokens)
            stored.append(block_hash)
        if not stored:
            return
        self._events.append(
            BlockStored(
                group=group,
                kind=self._kinds[group],
                hashes=tuple(stored),
                parent=hashes[run.first * run.units - 1] if run.first else None,
                block_tokens=run.block_tokens,
                token_ids=chain.token_bytes(run.first * run.block_tokens, run.last * run.block_tokens),
                salt="" if run.first else chain.salt,
                request_id=chain.request_id,
            )
        )

    def store_partial(
        self, chain: TokenChain, group: int, block: Block, tokens: int, unit_tokens: int
    ) -> EngineHash:
        """Make a block findable at `tokens`, a position inside it, beside what it is cached as already."""
        hashes = chain.hashes()
        unit = tokens // unit_tokens
        block_hash = hashes[unit - 1]
        known = block.number in self._cached[group].get(block_hash, ())
        if not known and block.hash is not None and block.hashed_tokens < tokens:
            self.forget(block)
        self._insert(block, group, block_hash, tokens)
        if not known:
            self._events.append(
                BlockStored(
                    group=group,
                    kind=self._kinds[group],
                    hashes=(block_hash,),
                    parent=hashes[unit - 2] if unit > 1 else None,
                    block_tokens=unit_tokens,
                    token_ids=chain.token_bytes(tokens - unit_tokens, tokens),
                    salt="" if unit > 1 else chain.salt,
                    request_id=chain.request_id,
                )
            )
        return block_hash

    def move_hashes(self, source: Block, target: Block) -> None:
        """What named `source` names `target` from now on; nobody is told, since nothing left the cache."""
        names, tokens, group = self._names(source), source.hashed_tokens, source.group
        self._drop(source, names)
        for block_hash in names:
            self._insert(target, group, block_hash, tokens)

    def forget(self, block: Block) -> None:
        """Remove every hash of a block, one event each."""
        if block.hash is None:
            return
        group = block.group
        for block_hash in self._drop(block, self._names(block)):
            self._events.append(BlockRemoved(group=group, hashes=(block_hash,)))

    def clear(self) -> bool:
        """Void the cache; refused while any block is in use."""
        if len(self._free) != self.usable_blocks:
            return False
        for block in self._blocks:
            block.hash, block.aliases = None, []
        for cached in self._cached:
            cached.clear()
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> tuple[KVEvent, ...]:
        events, self._events = tuple(self._events), []
        return events

    def check_integrity(self) -> None:
        for block in self._blocks[1:]:
            assert (block.references == 0) == (block in self._free), f"block {block.number} is lost"
            for block_hash in self._names(block):
                assert block.number in self._cached[block.group].get(block_hash, ())
        names = sum(len(self._names(block)) for block in self._blocks)
        assert names == sum(len(copies) for cached in self._cached for copies in cached.values())

    def _names(self, block: Block) -> list[EngineHash]:
        return [] if block.hash is None else [block.hash, *block.aliases]

    def _insert(self, block: Block, group: int, block_hash: EngineHash, tokens: int) -> None:
        copies = self._cached[group].setdefault(block_hash, {})
        if block.number in copies:
            return
        copies[block.number] = block
        if block.hash is None:
            block.hash, block.hashed_tokens, block.group = block_hash, tokens, group
        else:
            block.aliases.append(block_hash)

    def _drop(self, block: Block, names: Sequence[EngineHash]) -> Sequence[EngineHash]:
        cached = self._cached[block.group]
        for block_hash in names:
            copies = cached[block_hash]
            del copies[block.number]
            if not copies:
                del cached[block_hash]
        block.hash, block.hashed_tokens, block.aliases = None, 0, []
        return names
