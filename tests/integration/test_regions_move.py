"""A region that is started anew at another address, beside gateways that serve on."""

import asyncio

from dayzero.gateway.regions.peer import PeerAddress
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.testing.scripted_engine import ScriptedEngine, say
from tests.integration.region_gateways import PEER_KEY, region
from tests.integration.test_regions import TEXT, engine_saying, text_of


async def test_a_region_that_moved_is_asked_where_it_is_now_and_what_runs_ends_where_it_began(smollm2):
    slow = ScriptedEngine(say(ids_of(smollm2), every_s=0.3))
    async with (
        region("us-east", smollm2, {"r1": slow}) as before,
        region("us-east", smollm2, {"r2": engine_saying(smollm2)}) as after,
        region("edge", smollm2, peers={"us-east": before.url}) as edge,
    ):
        await edge.knows("us-east")
        running = asyncio.create_task(text_of(edge))
        async with asyncio.timeout(5):
            while not slow.stats().running:
                await asyncio.sleep(0.005)
        edge.peers["us-east"].move(before.url)
        assert edge.peers["us-east"].up
        edge.peers["us-east"].move(after.url)
        assert edge.peers["us-east"].status()["why"] == "not heard of yet"
        await edge.knows("us-east")
        assert await text_of(edge) == TEXT
        assert after.settlements
        assert await running == TEXT


async def test_addresses_are_followed_while_a_gateway_serves(smollm2):
    async with region("us-east", smollm2, {"r1": engine_saying(smollm2)}) as east:
        book = {"us-east": "http://127.0.0.1:9", "unknown": "http://127.0.0.1:9"}
        peers = Peers.at(
            [PeerAddress("us-east", book["us-east"])], PEER_KEY, RegionsPolicy(), book=lambda: book
        )
        peers.start()
        try:
            book["us-east"] = east.url
            async with asyncio.timeout(5):
                while not peers["us-east"].up:
                    await asyncio.sleep(0.01)
            assert peers["us-east"].status()["url"] == east.url
            assert peers.regions == ("us-east",), "who is in the book and not in the fleet is no peer"
        finally:
            await peers.stop()


def ids_of(frontend):
    return [*frontend._encoder.encode([TEXT], at_start=False)[0].tolist(), frontend.stop_ids[0]]
