"""G8 to G10: prefix hits, their separation by salt, and the events that tell of them."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from dayzero.engine.conformance.bench import Bench, cancelled, eventually
from dayzero.engine.conformance.registry import check
from dayzero.engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, GroupKind, KVEventBatch
from dayzero.engine.protocol import Engine
from dayzero.engine.types import TokenIds, unpack_ids

_EVICTION_LIMIT_TOKENS = 32_768


def _require_repeat_hit(bench: Bench, prompt: TokenIds, cached: int) -> None:
    below = len(prompt) - 1
    least = below // bench.block_tokens * bench.block_tokens
    most = below // bench.unit_tokens * bench.unit_tokens
    assert least <= cached <= most, (
        f"{len(prompt)} tokens sent again hit {cached}; blocks of {bench.block_tokens} and a unit of "
        f"{bench.unit_tokens} allow {least} to {most}"
    )


@check("G8")
async def a_repeated_prompt_hits(bench: Bench) -> None:
    """`usage.cached_tokens` is 0 on a cold cache, and the same prompt again hits as far as the blocks allow."""
    prompt = bench.cacheable_prompt()
    before = bench.engine.stats().cached_tokens_total
    cold = await bench.run(bench.request(prompt, max_tokens=4))
    assert cold.usage.cached_tokens == 0, f"a prompt never seen hit {cold.usage.cached_tokens} tokens"
    warm = await bench.run(bench.request(prompt, max_tokens=4))
    _require_repeat_hit(bench, prompt, warm.usage.cached_tokens)
    grown = bench.engine.stats().cached_tokens_total - before
    assert grown == warm.usage.cached_tokens, (
        f"stats count {grown} cached tokens, usage {warm.usage.cached_tokens}"
    )


@check("G8")
async def a_hit_is_less_than_the_prompt(bench: Bench) -> None:
    """A prompt that ends on a block is never wholly cached."""
    prompt = bench.prompt(2 * bench.block_tokens)
    await bench.run(bench.request(prompt, max_tokens=2))
    warm = await bench.run(bench.request(prompt, max_tokens=2))
    assert warm.usage.cached_tokens < len(prompt), "the whole prompt was called cached"


@check("G8")
async def a_longer_turn_hits_the_shorter(bench: Bench) -> None:
    """A prompt that continues an earlier one hits as far as the earlier one's last whole block."""
    first = bench.cacheable_prompt()
    await bench.run(bench.request(first, max_tokens=4))
    second = np.concatenate([first, bench.prompt(24)])
    turn = await bench.run(bench.request(second, max_tokens=4))
    least = (len(first) - 1) // bench.block_tokens * bench.block_tokens
    assert least <= turn.usage.cached_tokens <= len(first), (
        f"the second turn hit {turn.usage.cached_tokens} of the first turn's {len(first)} tokens"
    )


@check("G9")
async def salts_never_share(bench: Bench) -> None:
    """Requests with different `salt` never share cached blocks."""
    prompt = bench.cacheable_prompt()
    for salt in ("tenant-a", "tenant-b", ""):
        cold = await bench.run(bench.request(prompt, max_tokens=2, salt=salt))
        assert cold.usage.cached_tokens == 0, (
            f"salt {salt!r} saw {cold.usage.cached_tokens} tokens of another"
        )
    for salt in ("tenant-a", "tenant-b", ""):
        warm = await bench.run(bench.request(prompt, max_tokens=2, salt=salt))
        _require_repeat_hit(bench, prompt, warm.usage.cached_tokens)


@dataclass(slots=True)
class _Residency:
    """What a reader knows by folding events since it began; what was resident before it knows by number only.

    Engines may hold several copies of one hash: each is stored and removed by an event of its own, and the hash
    is resident while one is left.
    """

    before: dict[int, int]
    copies: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    foreign_removed: Counter[int] = field(default_factory=Counter)
    removed: int = 0

    def apply(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            match event:
                case BlockStored():
                    self.copies[event.group].update(event.hashes)
                case BlockRemoved():
                    for block_hash in event.hashes:
                        self._remove(event.group, block_hash)
                case AllBlocksCleared():
                    self.before = {}
                    self.copies.clear()
                    self.foreign_removed.clear()

    def _remove(self, group: int, block_hash: int) -> None:
        self.removed += 1
        known = self.copies[group]
        if known[block_hash] > 0:
            known[block_hash] -= 1
            return
        assert self.before.get(group), f"group {group}: a hash was removed that was never stored"
        self.foreign_removed[group] += 1

    def agrees_with(self, resident: dict[int, int]) -> bool:
        """Exactly, as long as nothing from before was removed; else within the copies that were."""
        for group in {*self.before, *self.copies, *resident}:
            most = self.before.get(group, 0) + self.distinct(group)
            if not most - self.foreign_removed[group] <= resident.get(group, 0) <= most:
                return False
        return True

    def distinct(self, group: int) -> int:
        return sum(count > 0 for count in self.copies[group].values())


@dataclass(slots=True)
class _Reader:
    """One reader of `kv_events`: what it got, and its residency."""

    residency: _Residency
    batches: list[KVEventBatch] = field(default_factory=list)

    async def read(self, engine: Engine) -> None:
        async for batch in engine.kv_events():
            if self.batches:
                expected = self.batches[-1].sequence + 1
                assert batch.sequence == expected, f"sequence {batch.sequence} came where {expected} was due"
            self.batches.append(batch)
            self.residency.apply(batch)


@check("G10")
async def events_folded_are_what_is_resident(bench: Bench) -> None:
    """KV events, folded, are what is resident: stored before removed, sequences without a gap."""
    engine = bench.engine
    await bench.until_idle()
    readers = [_Reader(_Residency(dict(engine.stats().resident_blocks))) for _ in range(2)]
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(reader.read(engine)) for reader in readers]
    await asyncio.sleep(0.05)  # let both readers subscribe
    prompts = [bench.cacheable_prompt() for _ in range(2)]
    for prompt in (*prompts, prompts[0]):
        await bench.run(bench.request(prompt, max_tokens=4))
    first = readers[0].residency

    def agree() -> bool:
        resident = engine.stats().resident_blocks
        return all(reader.residency.agrees_with(resident) for reader in readers)

    def failure() -> str:
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                return str(task.exception())
        added = {group: first.distinct(group) for group in first.copies}
        return (
            f"events folded add {added} to {first.before} blocks, stats say {engine.stats().resident_blocks}"
        )

    try:
        assert await eventually(lambda: bool(readers[0].batches) and agree(), 5), failure()
        _require_attention_runs_hold_the_prompt(bench, readers[0].batches, prompts[0])
        await _evict(bench, first)
        assert await eventually(agree, 5), failure()
        assert await eventually(lambda: len(readers[0].batches) == len(readers[1].batches), 2), (
            "two readers got different numbers of batches"
        )
        assert readers[0].batches == readers[1].batches, "two readers got different batches"
        assert not any(task.done() for task in tasks), failure()
    finally:
        await cancelled(*tasks)


def _require_attention_runs_hold_the_prompt(
    bench: Bench, batches: list[KVEventBatch], prompt: TokenIds
) -> None:
    """Walk the parents of the attention group's runs: the prompt's whole blocks stand there in order."""
    group = next(g for g in bench.engine.info.cache_groups if g.kind is GroupKind.ATTENTION)
    depth_of: dict[int, int] = {}
    at = 0
    for event in (event for batch in batches for event in batch.events):
        if not isinstance(event, BlockStored) or event.group != group.group:
            continue
        tokens = unpack_ids(event.token_ids)
        assert len(tokens) == len(event.hashes) * event.block_tokens, (
            f"{len(event.hashes)} blocks of {event.block_tokens} tokens came with {len(tokens)} token ids"
        )
        start = 0 if event.parent is None else depth_of.get(event.parent)
        if start is None:
            continue  # continues a run stored before this reader began
        for i, block_hash in enumerate(event.hashes):
            depth_of[block_hash] = start + (i + 1) * event.block_tokens
        overlap = prompt[start : start + len(tokens)]
        if start == at and len(overlap) and np.array_equal(overlap, tokens[: len(overlap)]):
            at = start + len(overlap)
    whole = len(prompt) // group.block_tokens * group.block_tokens
    assert at >= whole, f"events hold {at} of the {whole} tokens in whole blocks of a prompt just served"


async def _evict(bench: Bench, residency: _Residency) -> None:
    """Fill a small cache until it removes something; a large one is left alone."""
    info = bench.engine.info
    budget_tokens = info.cache_blocks * bench.block_tokens
    if budget_tokens > _EVICTION_LIMIT_TOKENS:
        return
    tokens = min(info.max_model_tokens // 2, max(budget_tokens // 4, bench.block_tokens + 1))
    for _ in range(2 * budget_tokens // tokens + 2):
        await bench.run(bench.request(bench.prompt(tokens), max_tokens=1))
        if residency.removed:
            return
    assert await eventually(lambda: residency.removed > 0, 2), (
        f"{2 * budget_tokens} tokens passed through a cache of {budget_tokens} and nothing was removed"
    )
