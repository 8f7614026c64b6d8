"""Records of decisions in a real Valkey: kept for an hour, found within a deadline, worth no wait and no memory."""

import asyncio
import contextlib
import random
import statistics
import time

import pytest

from dayzero.router.feed import DecisionStore, Store
from dayzero.router.feed.keys import Keys
from tests.integration.feed_world import REGION, until
from tests.integration.valkeys import delayed, valkey


@pytest.fixture
def server():
    with valkey() as server:
        yield server


async def test_a_decision_is_found_from_another_gateway_for_an_hour(server):
    mine, theirs = (DecisionStore(Store(server.url), region=REGION) for _ in range(2))
    writer = asyncio.create_task(mine.run())
    mine.keep("r1", b"because")
    assert await mine.find("r1") == b"because"
    await until(lambda: mine.status().written == 1, 10)
    assert await theirs.find("r1") == b"because"
    assert await theirs.find("r2") is None
    ttl_s = int(server.ask(f"TTL {Keys(REGION).decision('r1')}")[1:])
    assert 3500 < ttl_s <= 3600
    writer.cancel()


async def test_no_decision_waits_for_a_frozen_store(server):
    store = DecisionStore(Store(server.url), region=REGION)
    writer = asyncio.create_task(store.run())
    store.keep("r1", b"because")
    await until(lambda: store.status().written == 1, 10)
    server.freeze()
    took_s = []
    for number in range(20):
        started_s = time.perf_counter()
        store.keep(f"q{number}", b"x")
        assert await store.find("r1") is None
        took_s.append(time.perf_counter() - started_s)
    assert statistics.median(took_s) < 0.05, "a breaker that is open answers at once"
    assert max(took_s) < 1.0
    server.thaw()
    async with asyncio.timeout(20):
        while await store.find("r1") != b"because":
            await asyncio.sleep(0.05)
    writer.cancel()


async def test_answers_are_never_another_calls(server):
    """FIELD_REPORTS L2: reads that are cancelled at any time, through a slow way, leave no answer for the next."""
    dice = random.Random(1)
    async with delayed(server, 0.01) as slow_url:
        store = DecisionStore(Store(slow_url), region=REGION)
        writer = asyncio.create_task(store.run())
        names = [f"r{number}" for number in range(50)]
        for name in names:
            store.keep(name, name.encode())
        await until(lambda: store.status().written == 50, 10)
        found = 0
        for name in names * 4:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(dice.uniform(0.005, 0.05)):
                    answer = await store.find(name)
                    assert answer in {None, name.encode()}
                    found += answer is not None
        assert found > 10
        writer.cancel()


async def test_records_beyond_what_memory_may_hold_are_dropped_and_counted(server):
    store = DecisionStore(Store(server.url), region=REGION)
    for number in range(10_005):
        store.keep(f"r{number}", b"x")
    store.keep("large", bytes(300 << 10))
    store.keep("\ud800", b"x")
    status = store.status()
    assert (status.waiting, status.dropped) == (10_000, 7)
