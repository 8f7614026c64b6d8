"""What one region knows of another's cache: its digest, asked for over HTTP and read."""

import asyncio

import httpx

from dayzero.gateway.app import create_app
from dayzero.gateway.regions.peer import Peer, PeerAddress
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.gateway.regions.prefixes import KEPT_S, PeerPrefixes, ResidencyDigests
from dayzero.router.chain import Chain, Namespace
from dayzero.router.changes import Layout, Life, Stored
from dayzero.router.residency import Residency
from tests.integration.gateways import free_socket, listening
from tests.integration.region_gateways import MODEL, PEER_KEY, region, without_lifespan
from tests.integration.test_regions import engine_saying

CHAIN = Chain.of(bytes(4 * 16 * 8), Namespace(MODEL, 16))
LIFE = Life(replica="r1", incarnation="1", model=MODEL, layout=Layout(16, 16, (0,)), blocks=100)


def stored(first, last):
    return Stored(0, CHAIN.joined[16 * first : 16 * last], first + 1)


async def depth(peer, tokens):
    """Once the peer is known to have so many tokens of the chain."""
    async with asyncio.timeout(10):
        while (known := peer.prefixes(MODEL)) is None or known.depth_tokens({16: CHAIN}) != tokens:
            await asyncio.sleep(0.01)


async def test_a_digest_is_read_when_there_is_one_and_again_when_it_changed(smollm2):
    residency, now = Residency(), [0.0]
    digests = ResidencyDigests({MODEL: residency}, clock=lambda: now[0])
    sock, url = free_socket()
    policy = RegionsPolicy(probe_period_s=0.02, digest_period_s=0.02)
    peer = Peer(PeerAddress("west", url), PEER_KEY, policy, reader=PeerPrefixes.read)
    async with (
        region("west", smollm2, {"r1": engine_saying(smollm2)}) as west,
        listening(without_lifespan(create_app(west.gateway, digests=digests)), sock),
        httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {PEER_KEY}"}) as http,
    ):
        assert (await http.get(f"/internal/v1/peer/digest?model={MODEL}")).status_code == 404
        residency.begin(LIFE)
        residency.apply("r1", [stored(0, 3)])
        probes = asyncio.create_task(peer.run())
        await depth(peer, 3 * 16)
        residency.apply("r1", [stored(3, 8)])
        now[0] += KEPT_S
        await depth(peer, 8 * 16)
        residency.drop("r1")
        async with asyncio.timeout(10):
            while peer.prefixes(MODEL) is not None:
                await asyncio.sleep(0.01)
        probes.cancel()
        await asyncio.gather(probes, return_exceptions=True)
        await peer.close()


def test_a_digest_that_was_made_lately_is_told_again():
    residency, now = Residency(), [0.0]
    digests = ResidencyDigests({MODEL: residency}, clock=lambda: now[0])
    assert digests.version(MODEL) is digests.encoded(MODEL) is digests.version("other") is None
    residency.begin(LIFE)
    residency.apply("r1", [stored(0, 1)])
    before = digests.version(MODEL), digests.encoded(MODEL)
    residency.apply("r1", [stored(1, 2)])
    assert (digests.version(MODEL), digests.encoded(MODEL)) == before
    now[0] = KEPT_S
    assert digests.version(MODEL) != before[0]
    assert PeerPrefixes.read(digests.encoded(MODEL)).depth_tokens({16: CHAIN}) == 32
