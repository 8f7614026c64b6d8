"""The feed beside somebody who writes what he likes into the region's Valkey: others are heard again by themselves."""

import time

import pytest
import redis.asyncio as redis

from dayzero.router.feed.follower import MAX_REPLICAS
from dayzero.router.feed.keys import Keys
from dayzero.router.feed.messages import Batch, Beat, Hello, Mark, encode
from tests.integration.feed_world import REGION, until, watched_world
from tests.integration.valkeys import valkey
from tests.unit.feed_model import life

KEYS = Keys(REGION)


@pytest.fixture
def server():
    with valkey() as server:
        yield server


@pytest.fixture
async def intruder(server):
    async with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def world(server):
    """Two replicas with something cached, and one gateway that knows it exactly."""
    async with watched_world() as world:
        world.gateway(server.url)
        for name in "ab":
            world.replica(server.url, name).stir(20)
        await world.settle(within_s=3)
        yield world


async def flood(intruder, many):
    """A few at a time: it runs on the loop whose pauses are measured."""
    for first in range(0, many, 200):
        pipe = intruder.pipeline(transaction=False)
        for number in range(first, first + 200):
            name = f"forged{number}"
            pipe.xadd(KEYS.feed, {"m": encode(Hello(name, "1", 0, time.time(), life(name)))})
        await pipe.execute()


async def test_a_flood_of_invented_replicas_locks_out_neither_old_nor_new_ones(world, server, intruder):
    (gateway,) = world.gateways
    await flood(intruder, 12_000)
    await until(lambda: gateway.follower.status().messages > 12_000, 15)
    assert len(gateway.follower.status().replicas) <= MAX_REPLICAS
    late = world.replica(server.url, "late")
    late.stir(5)
    real = {one.life.replica: one.truth for one in world.replicas}

    def believed():
        return {name: gateway.index.held.get(name) for name in real} == real

    await until(believed, 5, lambda: gateway.follower.status().messages)
    await world.stir(for_s=0.5)
    await until(believed, 2)
    assert len(gateway.index.lives) <= MAX_REPLICAS


@pytest.mark.parametrize("kind", [Beat, Mark, Batch])
async def test_a_false_number_costs_a_live_replica_one_snapshot_and_no_more(world, intruder, kind):
    (gateway,) = world.gateways
    rest = ((),) if kind is Batch else ()
    await intruder.xadd(KEYS.feed, {"m": encode(kind("a", "1", 1 << 61, time.time(), *rest))})
    await until(lambda: not gateway.index.held["a"], 2)
    await world.settle(within_s=3)
    await world.stir(for_s=1)
    await world.settle(within_s=1)
    assert gateway.follower.status().replicas["a"].sequence < 1 << 61


LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


async def exhaust(intruder):
    await intruder.xadd(KEYS.feed, {"m": b"x"}, id=LAST_ID)


async def overwrite(intruder):
    await intruder.set(KEYS.feed, "boo")


@pytest.mark.parametrize("spoil", [exhaust, overwrite])
@pytest.mark.parametrize("busy", [True, False])
async def test_a_stream_that_takes_nothing_more_is_made_anew(world, server, intruder, spoil, busy):
    (gateway,) = world.gateways
    await spoil(intruder)
    if busy:
        await world.stir(for_s=1)

    async def anew():
        return await intruder.type(KEYS.feed) == b"stream" and await intruder.xlen(KEYS.feed) > 3

    async def numbered_anew():
        return (await intruder.xinfo_stream(KEYS.feed))["last-generated-id"] != LAST_ID.encode()

    await until(anew, 10)
    await until(numbered_anew, 10)
    await world.stir(for_s=0.5)
    await world.settle(within_s=8)
    heard = gateway.follower.status().messages
    world.gateway(server.url)
    await world.settle(within_s=3)
    await until(lambda: gateway.follower.status().messages > heard + 4, 4)
    assert gateway.follower.status().connected
    assert all(one.exact for one in gateway.follower.status().replicas.values())


@pytest.mark.parametrize("key", [KEYS.roll_call, KEYS.wanted])
async def test_what_lies_under_the_keys_by_which_gateways_ask_holds_up_no_batch(world, server, intruder, key):
    await intruder.delete(key)
    await intruder.rpush(key, "boo")
    failures = [one.publisher.status().failures for one in world.replicas]
    await world.stir(for_s=0.3)
    await world.settle(within_s=0.5)

    async def taken_away():
        return await intruder.type(key) != b"list"

    await until(taken_away, 3)
    world.gateway(server.url)
    await world.settle(within_s=2)
    await intruder.xtrim(KEYS.feed, maxlen=0, approximate=False)
    await world.stir(for_s=0.3)
    await world.settle(within_s=3)
    assert failures == [one.publisher.status().failures for one in world.replicas]


async def test_what_lies_under_one_snapshots_key_keeps_nobody_elses_away(world, intruder):
    (gateway,) = world.gateways
    failures, asked = gateway.follower.status().failures, gateway.follower.status().asked
    await intruder.rpush(KEYS.snapshot("ghost"), "boo")
    for message in (Hello("ghost", "1", 0, time.time(), life("ghost")), Mark("ghost", "1", 0, time.time())):
        await intruder.xadd(KEYS.feed, {"m": encode(message)})
    await until(lambda: gateway.follower.status().asked > asked, 3)
    assert gateway.follower.status().failures == failures, "other snapshots were fetched with it"


async def test_who_was_not_heard_for_long_is_not_called_exact_nor_the_feed_connected(world, server):
    gateway = world.gateway(server.url, clock=lambda: 20 * time.monotonic())
    await world.settle(within_s=2)
    for one in world.replicas:
        await one.die()

    def all_stale():
        status = gateway.follower.status()
        return not status.connected and not any(one.exact for one in status.replicas.values())

    await until(all_stale, 2, gateway.follower.status)
    assert set(gateway.follower.status().replicas) == {"a", "b"}
    assert all(gateway.index.held.values()), "what is known stays known"
