"""Our side: the router's own index, score and feed, in this process, filled and asked as `workload` says."""

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import psutil

from dayzero.router.chain import Chain, Namespace, extend
from dayzero.router.changes import Held, Layout, Life, Stored, Tier
from dayzero.router.inflight import InFlight
from dayzero.router.load import Candidate, ReplicaId, Report
from dayzero.router.place import PlaceRequest, View, place
from dayzero.router.residency import Residency
from placing.workload import Run, Workload, distinct

MODEL = "bench"
STATES = (1, 2, 3)
PATIENCE_S = 30.0
"""Blocks that are not known by then never will be: a failure is better than a benchmark that waits for ever."""


@dataclass(slots=True)
class Ours:
    """`hybrid`: three state groups beside the attention group, with a checkpoint at the end of each run."""

    workload: Workload
    hybrid: bool = False
    residency: Residency = field(default_factory=lambda: Residency(max_blocks=8_000_000))
    _book: InFlight = field(default_factory=InFlight)
    _asked: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)

    @property
    def space(self) -> Namespace:
        return Namespace(MODEL, self.workload.block_tokens, "tenant")

    def life(self, replica: int) -> Life:
        size = self.workload.block_tokens
        layout = Layout(size, size, (0,), STATES if self.hybrid else ())
        return Life(
            replica=name(replica), incarnation=f"{replica}", model=MODEL, layout=layout, blocks=4_000_000
        )

    def begin(self) -> None:
        for replica in range(self.workload.replicas):
            self.residency.begin(self.life(replica))

    def changes(self, run: Run) -> list[Stored]:
        """As a replica's adapter tells them. Made before anything is timed."""
        size = self.workload.block_tokens
        prefix = len(run.prefix) // size
        before = Chain.of(run.prefix.tobytes(), self.space).hashes()
        hashes = extend(before[-1] if before else self.space.root(), run.token_ids.tobytes(), size)
        told = [Stored(0, b"".join(hashes), prefix + 1)]
        if self.hybrid:
            told += [Stored(group, hashes[-1], prefix + len(hashes)) for group in STATES]
        return told

    def fill(self) -> int:
        self.begin()
        blocks = 0
        for run in self.workload.runs():
            self.residency.apply(name(run.replica), self.changes(run))
            blocks += len(run.token_ids) // self.workload.block_tokens
        return blocks

    def decide(self, prompt_ids: bytes, chain: Chain | None) -> int:
        """One decision as a gateway makes it, reservation included; the tokens found at the replica it chose."""
        tokens = len(prompt_ids) // 4
        if chain is None:
            chain = Chain.of(prompt_ids, self.space)
        found = self.residency.reusable({chain.unit_tokens: chain}, tokens)
        now_s = time.monotonic()
        candidates = tuple(
            Candidate(
                replica=ReplicaId(replica),
                slots=256,
                max_requests=1024,
                report=Report(running=8, waiting=0, backlog_tokens=0, at_s=now_s),
                own=self._book.own(ReplicaId(replica)),
                unreported=self._book.unreported(ReplicaId(replica), now_s),
                reusable_tokens=reusable,
            )
            for replica, reusable in found.items()
        )
        placement = place(PlaceRequest(f"r{self._asked()}", tokens), View(candidates), now_s)
        best = placement.order[0]
        with self._book.reserve(best, tokens - found[best], now_s):
            return found[best]

    def ask(self, tokens: int, times: int, *, hashed: bool) -> dict[str, object]:
        """Seconds of each decision; `hashed`: the chain is there already."""
        ids = self.workload.prompt(tokens).tobytes()
        chain = Chain.of(ids, self.space) if hashed else None
        took, found = [], 0
        for _ in range(times):
            began = time.perf_counter()
            found = self.decide(ids, chain)
            took.append(time.perf_counter() - began)
        return {"took_s": took, "found_tokens": found}


def name(replica: int) -> str:
    return f"replica-{replica:03}"


def grow(block_tokens: int, blocks: int, run_blocks: int, *, hybrid: bool) -> dict[str, float]:
    """Bytes that so many distinct blocks take, hash objects and tables, and the seconds that applying them took."""
    side = Ours(Workload(1, block_tokens), hybrid)
    side.begin()
    gc.collect()
    before, took_s = _memory(), 0.0
    for run in distinct(block_tokens, run_blocks, blocks):
        told = side.changes(run)
        began = time.perf_counter()
        side.residency.apply(name(0), told)
        took_s += time.perf_counter() - began
    gc.collect()
    return {"bytes": _memory() - before, "took_s": took_s}


async def through_the_feed(
    store_url: str, block_tokens: int, runs: Iterable[Run], lags: int
) -> dict[str, object]:
    """Blocks a second from a publisher through the store into an index, and the lag of single small runs."""
    from dayzero.router.feed.follower import Follower
    from dayzero.router.feed.publisher import Publisher
    from dayzero.router.feed.store import Store

    side = Ours(Workload(1, block_tokens))
    life = side.life(0)
    told_so_far: list[Stored] = []
    publisher = Publisher(Store(store_url), region="bench", life=life, held=lambda: _held(told_so_far))
    follower = Follower(Store(store_url), region="bench", residency_of=lambda _: side.residency)
    tasks = [asyncio.create_task(publisher.run()), asyncio.create_task(follower.run())]

    async def known(blocks: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while side.residency.counts().blocks.get(life.replica, 0) < blocks:
                await asyncio.sleep(0.002)

    try:
        while life.replica not in follower.status().replicas:
            await asyncio.sleep(0.01)
        prepared = [side.changes(run) for run in runs]
        blocks = sum(len(change.hashes) // 16 for told in prepared for change in told)
        began = time.perf_counter()
        for told in prepared:
            told_so_far += told
            publisher.put(told)
            await asyncio.sleep(0)
        await known(blocks)
        took_s = time.perf_counter() - began
        lag = []
        # From 1: what `distinct` makes unshifted is the start of the first of `runs`, and known already.
        for number in range(1, lags + 1):
            (run,) = distinct(block_tokens, 4, 4)
            told = side.changes(Run(0, run.prefix, run.token_ids + number, 0))
            await asyncio.sleep(0.1)
            began = time.perf_counter()
            told_so_far += told
            publisher.put(told)
            blocks += 4
            await known(blocks)
            lag.append(time.perf_counter() - began)
        return {"blocks": blocks - 4 * lags, "took_s": took_s, "lag_s": lag}
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def _held(told: list[Stored]) -> tuple[Held, ...]:
    """All that was told, as a snapshot."""
    depths = [change.units + at for change in told for at in range(len(change.hashes) // 16)]
    units = np.array(depths, "<u4").tobytes()
    return (Held(0, Tier.GPU, b"".join(change.hashes for change in told), units),)


def _memory() -> int:
    return psutil.Process().memory_info().rss
