"""A replica's side of the feed, with the simulated engine and a real Valkey: proof, telling, and engines that lie."""

import asyncio
import contextlib

import msgspec
import pytest

from dayzero.engine.chains import chain_of
from dayzero.engine.kv_events import BlockStored
from dayzero.engine.simulated_output import OutputVoice
from dayzero.engine.simulated_profile import load_profile
from dayzero.engine.types import EngineRequest, Sampling, pack_ids
from dayzero.router.chain import HASH_BYTES
from dayzero.router.feed import Follower, Store
from dayzero.router.residency import Residency
from dayzero.serving.cache_feed import CacheFeed
from dayzero.serving.engines.sim import SimulatedEngine
from tests.integration.valkeys import valkey

PROFILES = ["instant", "instant-hybrid", "kimi-k3-gb300-tp8"]


class Lying(SimulatedEngine):
    """Tells of other token ids than it has cached."""

    async def kv_events(self):
        async for batch in super().kv_events():
            events = [
                msgspec.structs.replace(event, token_ids=bytes(len(event.token_ids)))
                if isinstance(event, BlockStored)
                else event
                for event in batch.events
            ]
            yield msgspec.structs.replace(batch, events=tuple(events))


class Silent(SimulatedEngine):
    """Tells nothing."""

    async def kv_events(self):
        await asyncio.Event().wait()
        yield


class Breaking(SimulatedEngine):
    """Tells what makes no sense once it is asked to."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.breaks = asyncio.Event()

    async def kv_events(self):
        async for batch in super().kv_events():
            if self.breaks.is_set():
                raise ValueError("what is this")
            yield batch


@contextlib.asynccontextmanager
async def told(engine_class, profile_name, server):
    """A started engine, its feed, and a gateway's residency that follows it."""
    profile = load_profile(profile_name)
    engine = engine_class(profile, OutputVoice(tuple(range(200, 260)), 2), time_scale=0.0)
    await engine.start()
    residency = Residency()
    follower = Follower(Store(server.url), region="r", residency_of=lambda _: residency)
    following = asyncio.create_task(follower.run())
    feed = CacheFeed(engine, replica="one", region="r", store_url=server.url, events_within_s=1.0)
    try:
        await feed.start()
        yield engine, feed, residency
    finally:
        await feed.stop()
        await engine.stop()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def serve(engine, feed, request):
    feed.admit(request)
    cached = None
    async for delta in engine.generate(request):
        cached = delta.usage.cached_tokens if delta.usage else cached
    return cached


def asked(name, tokens):
    ids = pack_ids([1000 + at % 777 for at in range(tokens)])
    return EngineRequest(request_id=name, prompt_ids=ids, sampling=Sampling(max_tokens=2), salt="tenant")


async def until(is_so):
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


async def settled(feed, residency):
    """Once the gateway knows as many names as the replica has."""
    await asyncio.sleep(0.05)  # the engine's latest events are on their way to the replica's own side

    def names():
        return sum(len(part.hashes) for part in feed._translator.held()) // HASH_BYTES

    await until(lambda: residency.counts().blocks.get("one") == names())


@pytest.mark.parametrize("profile", PROFILES)
async def test_what_an_engine_caches_is_credited_to_its_replica_exactly(profile):
    with valkey() as server:
        async with told(SimulatedEngine, profile, server) as (engine, feed, residency):
            assert feed.affinity.proved, feed.affinity.reason
            layout = next(iter(engine.info.cache_groups))
            tokens = 3 * layout.block_tokens + layout.block_tokens // 2 + 1
            for turn in range(3):  # in hybrids a state at the prompt's tail: the second turn finds it
                request = asked(f"turn-{turn}", tokens + turn * 3)
                unit = engine.info.match_unit_tokens
                chains = {unit: chain_of(request, engine.info.model, unit)}
                await settled(feed, residency)
                predicted = residency.reusable(chains, request.prompt_tokens).get("one", 0)
                assert predicted == await serve(engine, feed, request)
                assert (predicted > 0) is (turn > 0)
            assert feed.describe()["unresolved"] == 0


@pytest.mark.parametrize("engine_class", [Lying, Silent])
async def test_an_engine_whose_events_do_not_fit_serves_without_affinity_and_says_so(engine_class, caplog):
    with valkey() as server:
        async with told(engine_class, "instant", server) as (engine, feed, residency):
            assert not feed.affinity.proved
            assert feed.describe()["reason"] == feed.affinity.reason != ""
            assert "gets no requests for what it has cached" in caplog.text
            assert await serve(engine, feed, asked("one", 40)) == 0
            await asyncio.sleep(0.5)
            assert residency.lives == {}


class Failing(SimulatedEngine):
    """Fails its first requests with what is no error of ours."""

    fails = True

    async def generate(self, request):
        if self.fails:
            raise RuntimeError("an adapter's own fault")
        async for delta in super().generate(request):
            yield delta


async def test_an_engine_whose_probe_fails_with_an_error_not_ours_serves_without_affinity(caplog):
    with valkey() as server:
        async with told(Failing, "instant", server) as (engine, feed, residency):
            assert not feed.affinity.proved
            assert "the proof of its events failed" in feed.describe()["reason"]
            assert "an adapter's own fault" in caplog.text
            engine.fails = False
            assert await serve(engine, feed, asked("one", 40)) == 0
            await asyncio.sleep(0.5)
            assert residency.lives == {}


async def test_a_feed_that_fails_later_takes_back_what_it_has_told(caplog):
    with valkey() as server:
        async with told(Breaking, "instant", server) as (engine, feed, residency):
            assert feed.affinity.proved
            await serve(engine, feed, asked("one", 40))
            await until(lambda: residency.counts().blocks.get("one"))
            engine.breaks.set()
            await serve(engine, feed, asked("two", 80))
            await until(lambda: residency.lives == {})
            assert not feed.affinity.proved
            assert "its feed failed" in feed.describe()["reason"]
            assert "what is this" in caplog.text
