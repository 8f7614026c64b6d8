"""The feed over a real Valkey that is restarted, emptied, frozen, slowed, trimmed and locked.

After each, what a gateway believes is exactly what the replicas hold, within the time that the test names; and
meanwhile nothing that a request does waits for the store.
"""

import asyncio
import time

import pytest

from dayzero.router.changes import Cleared, Stored
from dayzero.router.feed import DecisionStore, Store
from dayzero.router.feed.keys import Keys
from tests.integration.feed_world import REGION, until, watched_world
from tests.integration.valkeys import delayed, valkey
from tests.unit.feed_model import hashed


@pytest.fixture
def server():
    with valkey() as server:
        yield server


@pytest.fixture
async def world(server):
    async with watched_world() as world:
        yield world


@pytest.fixture
async def settled(world, server):
    """Two replicas with something cached, and one gateway that knows it exactly."""
    world.gateway(server.url)
    for name in "ab":
        world.replica(server.url, name).stir(20)
    await world.settle(within_s=3)
    return world


async def test_a_gateway_believes_what_replicas_publish_within_a_second_of_it(settled):
    await settled.stir(for_s=1)
    await settled.settle(within_s=1)
    (gateway,) = settled.gateways
    status = gateway.follower.status()
    assert status.connected
    assert status.gaps == 0
    assert 0 <= status.lag_s < 1
    assert {name: feed.exact for name, feed in status.replicas.items()} == {"a": True, "b": True}


async def test_a_gateway_that_starts_is_exact_within_a_second(settled, server):
    await settled.stir(for_s=0.3)
    settled.gateway(server.url)
    await settled.settle(within_s=1)


async def test_two_gateways_follow_side_by_side(settled, server):
    settled.gateway(server.url)
    await settled.stir(for_s=1)
    await settled.settle(within_s=1)


async def test_a_replica_that_starts_again_is_believed_in_its_new_life_only(settled, server):
    await settled.replicas[0].die()
    settled.replica(server.url, "a", "2").stir(3)
    await settled.settle(within_s=1)


async def test_a_replica_that_ends_is_gone_and_stays_gone(settled, server):
    leaving = settled.replicas[0]
    await leaving.publisher.close()
    settled.replicas.remove(leaving)
    await settled.stir(for_s=1.5)
    await settled.settle(within_s=1)


async def test_what_is_known_stays_known_while_the_store_is_dead_and_when_it_comes_back_empty(
    settled, server
):
    (gateway,) = settled.gateways
    known = {name: set(held) for name, held in gateway.index.held.items()}
    await asyncio.to_thread(server.kill)
    await until(lambda: not gateway.follower.status().connected, 3)
    assert gateway.index.held == known
    await asyncio.to_thread(server.start)
    least = len(known)
    await until(lambda: gateway.follower.status().connected, 5)
    assert len(gateway.index.held) == least
    await settled.stir(for_s=1)
    await settled.settle(within_s=5)


async def test_changes_made_while_the_store_is_dead_are_told_when_it_is_back(settled, server):
    await asyncio.to_thread(server.kill)
    await settled.stir(for_s=1.5)
    await asyncio.to_thread(server.start)
    await settled.settle(within_s=5)


async def test_a_flushed_store_is_noticed_and_gateways_that_start_after_it_are_exact(settled, server):
    await asyncio.to_thread(server.flush)

    async def called():
        return Keys(REGION).roll_call in (await asyncio.to_thread(server.ask, "KEYS *")).decode()

    await until(called, 2)
    settled.gateway(server.url)
    await settled.settle(within_s=1.5)
    await asyncio.to_thread(server.flush)
    await settled.stir(for_s=0.5)
    await settled.settle(within_s=2)


async def test_a_frozen_store_delays_nothing_and_is_caught_up_with(settled, server):
    server.freeze()
    await settled.stir(for_s=4)
    (gateway,) = settled.gateways
    assert not gateway.follower.status().connected
    server.thaw()
    await settled.settle(within_s=6)


async def test_a_primary_that_became_read_only_is_written_to_again_when_it_may_be(settled, server):
    await asyncio.to_thread(server.ask, "REPLICAOF 127.0.0.1 1")
    await until(lambda: not any(one.publisher.status().connected for one in settled.replicas), 2)
    await settled.stir(for_s=0.5)
    await asyncio.to_thread(server.ask, "REPLICAOF NO ONE")
    await settled.settle(within_s=5)


async def test_who_is_silent_for_long_while_others_are_heard_is_dropped_and_nobody_when_all_are(
    world, server
):
    # A clock that runs 20 times as fast: half a minute of silence in a second and a half.
    gateway = world.gateway(server.url, clock=lambda: 20 * time.monotonic())
    dying, living = (world.replica(server.url, name) for name in "ab")
    await world.stir(for_s=0.5)
    await world.settle(within_s=2)
    await dying.die()
    world.replicas.remove(dying)
    await world.stir(for_s=2)
    await world.settle(within_s=1)
    assert set(gateway.index.held) == {"b"}
    await asyncio.to_thread(server.kill)
    await world.stir(for_s=2.5)
    assert set(gateway.index.held) == {"b"}
    await asyncio.to_thread(server.start)
    await world.settle(within_s=5)
    assert living.publisher.status().connected


async def test_a_replica_whose_words_residency_cannot_take_does_not_end_the_others(settled, server):
    (gateway,) = settled.gateways
    apply, failed = gateway.index.apply, []

    def refuses_once(replica, changes):
        if replica == "a" and not failed:
            failed.append(replica)
            raise ValueError("what is this")
        apply(replica, changes)

    gateway.index.apply = refuses_once
    await settled.stir(for_s=0.5)
    await settled.settle(within_s=4)
    assert failed


async def test_a_store_that_adds_200_ms_to_every_answer_is_followed_with_that_lag(world, server):
    async with delayed(server, 0.2) as slow_url:
        world.gateway(slow_url)
        for name in "ab":
            world.replica(slow_url, name)
        await world.stir(for_s=2)
        await world.settle(within_s=4)
        (gateway,) = world.gateways
        assert gateway.follower.status().connected
        await world.end()
        world.replicas, world.gateways = [], []


async def test_a_gateway_whose_unread_messages_were_trimmed_asks_and_is_exact_again(settled, server):
    async with delayed(server, 0.2) as slow_url:
        behind = settled.gateway(slow_url)
        await settled.settle(within_s=3)
        for _ in range(10):
            await settled.stir(for_s=0.1)
            await asyncio.to_thread(server.ask, f"XTRIM {Keys(REGION).feed} MAXLEN 0")
        await settled.settle(within_s=5)
        assert behind.follower.status().gaps >= 1
        settled.gateways.remove(behind)
        await behind.die()


async def test_a_wrong_password_fails_nothing_but_the_feed(world):
    with valkey(password="right") as server:
        wrong = server.url.replace("right", "wrong")
        gateway, replica = world.gateway(wrong), world.replica(wrong, "a")
        decisions = DecisionStore(Store(wrong), region=REGION)
        writer = asyncio.create_task(decisions.run())
        replica.stir(10)
        decisions.keep("r1", b"why")
        await until(lambda: decisions.status().dropped == 1, 3)
        assert await decisions.find("r1") is None
        assert not gateway.follower.status().connected
        assert not replica.publisher.status().connected
        writer.cancel()
        await replica.die()
        await gateway.die()
        world.replicas, world.gateways = [], []
        world.gateway(server.url)
        world.replica(server.url, "a").stir(10)
        await world.settle(within_s=2)


async def test_what_is_not_a_message_is_counted_and_skipped(settled, server):
    feed = Keys(REGION).feed
    for words in ("m garbage", "n other", "m \x01\x91\x91"):
        assert (await asyncio.to_thread(server.ask, f"XADD {feed} * {words}")).startswith(b"$")
    await asyncio.to_thread(server.ask, f"SET {Keys(REGION).snapshot('a')} garbage")
    (gateway,) = settled.gateways
    await until(lambda: gateway.follower.status().skipped == 3, 2)
    await settled.stir(for_s=0.3)
    await settled.settle(within_s=1)


async def test_a_replica_that_overflows_is_exact_again_after_a_snapshot(settled, server):
    replica = settled.replicas[0]
    replica.put(*(Stored(0, hashed(*range(at, at + 20_000)), 1) for at in range(0, 400_000, 20_000)))
    assert replica.publisher.status().overflows >= 1
    replica.put(Cleared(), Stored(0, hashed(1), 1))
    await settled.settle(within_s=5)


async def test_a_model_that_a_gateway_does_not_serve_is_neither_kept_nor_asked_for(settled, server):
    other = settled.replica(server.url, "c", model="other")
    other.stir(5)
    (gateway,) = settled.gateways
    await until(lambda: "c" in gateway.follower.status().replicas, 2)
    asked = gateway.follower.status().asked
    settled.replicas.remove(other)
    await settled.stir(for_s=2)
    await settled.settle(within_s=1)
    assert gateway.follower.status().asked == asked
    await other.publisher.close()


async def test_nothing_but_hashes_and_names_is_in_the_store(settled, server):
    keys = (await asyncio.to_thread(server.ask, "KEYS *")).decode().split("\r\n")[2::2]
    named = Keys(REGION)
    expected = {named.feed, named.roll_call, named.wanted, named.snapshot("a"), named.snapshot("b")}
    assert set(filter(None, keys)) <= expected


async def test_a_hundred_replicas_are_followed_and_the_stream_stays_small(world, server):
    gateway = world.gateway(server.url)
    for number in range(100):
        world.replica(server.url, f"r{number}")
    for _ in range(20):
        for one in world.replicas:
            one.stir()
            await asyncio.sleep(0.001)
    await world.settle(within_s=10)
    assert gateway.follower.status().gaps == 0
    world.gateway(server.url)
    await world.settle(within_s=5)
    assert server.used_bytes() < 100 << 20
