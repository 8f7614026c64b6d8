"""Replicas that publish what they hold, gateways that follow, and whether the two agree."""

import asyncio
import contextlib
import gc
import inspect
import random
import time
from itertools import count
from pathlib import Path

from dayzero.router.changes import Cleared, Removed, Stored
from dayzero.router.feed import Follower, Publisher, Store
from tests.unit.feed_model import SetIndex, change, hashed, held_of, life

REGION = "us-east"
PAUSE_S = 0.5
"""No step of the event loop may take so long: a store that is asked from within one would take longer.

Time in which this process wanted to run and others had the cores is left out.
"""


@contextlib.contextmanager
def only_its_own_heap():
    """Python's collector leaves alone what other tests made before: in a process that ran engines it takes half a
    second to look at that, on whatever thread runs. A gateway does the same (`gateway.garbage`).
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Replica:
    """A publisher and the truth that it publishes."""

    def __init__(self, url, name, incarnation="1", model="m"):
        self.truth, self.longest_put_s = set(), 0.0
        self._numbers, self._dice = count(1), random.Random(name)
        self._salt = hash((name, incarnation)) & 0xFFFFFFFF
        self.life = life(name, incarnation, model)
        self.publisher = Publisher(
            Store(url), region=REGION, life=self.life, held=lambda: held_of(self.truth)
        )
        self.task = asyncio.create_task(self.publisher.run())

    def put(self, *changes):
        for what in changes:
            change(self.truth, what)
        started_s = time.perf_counter()
        self.publisher.put(changes)
        self.longest_put_s = max(self.longest_put_s, time.perf_counter() - started_s)

    def stir(self, times=1):
        """Caches a few blocks, evicts some, and sometimes all."""
        for _ in range(times):
            new = [self._salt << 64 | next(self._numbers) for _ in range(5)]
            self.put(Stored(0, hashed(*new), 1))
            gone = self._dice.sample(sorted(self.truth), min(2, len(self.truth)))
            self.put(Removed(0, b"".join(gone)))
            if self._dice.random() < 0.02:
                self.put(Cleared())

    async def die(self):
        """As a killed process: nothing more is said."""
        self.task.cancel()
        await asyncio.wait([self.task])


class Gateway:
    def __init__(self, url, models=("m",), **named):
        self.index = SetIndex()
        self.follower = Follower(
            Store(url),
            region=REGION,
            residency_of=lambda model: self.index if model in models else None,
            **named,
        )
        self.task = asyncio.create_task(self.follower.run())

    async def die(self):
        self.task.cancel()
        await asyncio.wait([self.task])


class World:
    def __init__(self):
        self.replicas, self.gateways, self.longest_pause_s = [], [], 0.0

    def replica(self, url, name, *more, **named):
        self.replicas = [one for one in self.replicas if one.life.replica != name]
        self.replicas.append(Replica(url, name, *more, **named))
        return self.replicas[-1]

    def gateway(self, url, **named):
        self.gateways.append(Gateway(url, **named))
        return self.gateways[-1]

    def agrees(self):
        truth = {one.life.replica: one.truth for one in self.replicas if one.life.model == "m"}
        return all(
            gateway.index.held == truth
            and all(gateway.index.lives[one.life.replica] == one.life for one in self.replicas)
            for gateway in self.gateways
        )

    async def settle(self, within_s):
        """Waits until every gateway believes exactly what the replicas hold."""
        await until(self.agrees, within_s, lambda: [gateway.follower.status() for gateway in self.gateways])
        assert self.gateways, "nobody was there to agree"
        assert self.replicas

    async def stir(self, for_s):
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            for one in self.replicas:
                one.stir()
            await asyncio.sleep(0.01)

    async def pulse(self):
        while True:
            before_s, kept_from_s = time.perf_counter(), waited_for_a_core_s()
            await asyncio.sleep(0.005)
            pause_s = time.perf_counter() - before_s - (waited_for_a_core_s() - kept_from_s)
            self.longest_pause_s = max(self.longest_pause_s, pause_s)

    async def end(self):
        for one in self.replicas:
            if not one.task.done():
                await one.publisher.close()
        for one in self.gateways:
            await one.die()


@contextlib.asynccontextmanager
async def watched_world():
    """A world in which nobody failed, the loop was never held, and no replica was kept waiting."""
    with only_its_own_heap():
        world = World()
        pulse = asyncio.create_task(world.pulse())
        yield world
        for one in world.replicas + world.gateways:
            if one.task.done() and not one.task.cancelled():
                one.task.result()
        await world.end()
        pulse.cancel()
    assert world.longest_pause_s < PAUSE_S
    assert all(one.longest_put_s < 0.05 for one in world.replicas)


def waited_for_a_core_s():
    """How long this thread could have run and did not, so far; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


async def until(is_so, within_s, what=lambda: ""):
    """`is_so` may be a coroutine function: what asks a store must not do so on the loop whose pauses are measured."""
    deadline_s = time.monotonic() + within_s
    while not (await so if inspect.isawaitable(so := is_so()) else so):
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what()}"
        await asyncio.sleep(0.01)
