"""The routes between regions: who may use them, what is bounded, how connections are used, and what status shows."""

import asyncio
import time
import zlib

import httpx
import openai
import pytest

from dayzero.gateway.regions.health import HealthPolicy
from dayzero.gateway.service import GatewayLimits
from tests.integration.region_gateways import (
    ASK,
    CLIENT_KEY,
    MODEL,
    OPERATOR_KEY,
    PEER_KEY,
    counted,
    region,
)
from tests.integration.test_regions import TEXT, a_request, engine_saying, post, text_of


@pytest.mark.parametrize("path", ["/internal/v1/generate", "/internal/v1/peer", "/internal/v1/peer/digest"])
async def test_the_peers_routes_take_the_peer_key_and_no_other(smollm2, path):
    async with (
        region("eu-west", smollm2, {"r1": engine_saying(smollm2)}) as west,
        httpx.AsyncClient(base_url=west.url) as http,
    ):
        method = "POST" if path.endswith("generate") else "GET"
        answers = [
            (await http.request(method, path, headers={"authorization": f"Bearer {key}"})).status_code
            for key in (CLIENT_KEY, OPERATOR_KEY, "dz-unknown")
        ]
        assert answers == [403, 403, 401]
        assert (await http.request(method, path)).status_code == 401
        key = {"authorization": f"Bearer {PEER_KEY}"}
        assert (await http.post("/v1/chat/completions", json=ASK, headers=key)).status_code == 403
        assert (await http.get("/internal/v1/status", headers=key)).status_code == 403


async def test_what_a_peer_sends_is_bounded_and_checked(smollm2):
    limits = GatewayLimits(max_body_bytes=1000, max_in_flight=0)
    async with region("eu-west", smollm2, {"r1": engine_saying(smollm2)}, limits=limits) as west:
        full = await post(
            west.url, "/internal/v1/generate", a_request(), PEER_KEY, **{"dayzero-model": MODEL}
        )
        assert full.status_code == 503
    limits = GatewayLimits(max_body_bytes=1000)
    async with region("eu-west", smollm2, {"r1": engine_saying(smollm2)}, limits=limits) as west:

        async def status(body, model=MODEL, **headers):
            headers = {"dayzero-model": model} | headers
            return (await post(west.url, "/internal/v1/generate", body, PEER_KEY, **headers)).status_code

        assert await status(bytes(1001)) == 413
        assert await status(b"\xff not a request") == 400
        assert await status(a_request(prompt_ids=b"")) == 400
        assert await status(a_request(prompt_ids=b"123")) == 400
        assert await status(a_request(), "another-model") == 404
        assert await status(a_request(deadline_s=1.0)) == 504
        packed = {"content-encoding": "deflate"}
        assert await status(zlib.compress(bytes(100_000)), **packed) == 413
        assert await status(zlib.compress(a_request())[:-5], **packed) == 400
        assert await status(a_request(), **{"content-encoding": "br"}) == 400
        assert await status(zlib.compress(a_request()), **packed) == 200
        assert await status(a_request()) == 200
        await west.check_nothing_is_left()


async def test_one_connection_serves_one_request_after_another(smollm2):
    engine = engine_saying(smollm2)
    async with (
        region("eu-west", smollm2, {"r1": engine}) as west,
        counted(west) as (counting, url),
        region("edge", smollm2, peers={"eu-west": url}) as edge,
    ):
        await edge.knows("eu-west")
        for _ in range(20):
            assert await text_of(edge) == TEXT
        assert counting.paths.count("/internal/v1/generate") == 20
        assert len(counting.ports) <= 8


async def test_a_long_prompt_is_packed_for_a_region_that_is_far(smollm2):
    engine = engine_saying(smollm2)
    words = " ".join(str(number) for number in range(1500))
    async with (
        region("eu-west", smollm2, {"r1": engine}) as west,
        counted(west, away_s=0.02) as (counting, url),
        region("edge", smollm2, peers={"eu-west": url}) as edge,
    ):
        await edge.knows("eu-west")
        while edge.peers["eu-west"].round_trip_s is None:
            await asyncio.sleep(0.005)
        long = {**ASK, "messages": [{"role": "user", "content": words}]}
        answer = await edge.client().chat.completions.create(**long)
        assert answer.choices[0].message.content == TEXT
        assert answer.usage.prompt_tokens == engine.requests[0].prompt_tokens > 4000
        assert await text_of(edge) == TEXT
        assert counting.encodings == [b"deflate", None]


async def test_status_shows_the_regions_view_of_one_another(smollm2):
    async with (
        region("eu-west", smollm2, {"r1": engine_saying(smollm2)}) as west,
        region(
            "us-east",
            smollm2,
            {"r1": engine_saying(smollm2)},
            peers={"eu-west": west.url, "north": "http://127.0.0.1:1"},
        ) as east,
        httpx.AsyncClient(base_url=east.url) as http,
    ):
        await east.knows("eu-west")
        key = {"authorization": f"Bearer {OPERATOR_KEY}"}
        lines = {}
        async with asyncio.timeout(20):
            while not ("round_trip_ms" in lines.get("eu-west", {}) and "down" in lines["north"]["why"]):
                status = (await http.get("/internal/v1/status", headers=key)).json()
                lines = {line["region"]: line for line in status["regions"]}
        assert lines["eu-west"]["up"] is True
        assert lines["eu-west"]["round_trip_ms"] < 5000
        assert lines["eu-west"]["age_s"] < 20
        assert lines["eu-west"]["models"][0]["replicas"] == {"healthy": 1}
        assert lines["eu-west"]["models"][0]["wait_s"] >= 0
        assert lines["north"]["up"] is False
        assert "cannot be reached" in lines["north"]["why"]
        assert "round_trip_ms" not in lines["north"]
        assert PEER_KEY not in str(status)


async def test_a_wrong_peer_key_is_never_tried_in_a_storm(smollm2):
    engine = engine_saying(smollm2)
    async with (
        region("eu-west", smollm2, {"r1": engine}) as west,
        counted(west) as (counting, url),
        region("edge", smollm2, peers={"eu-west": url}, peer_key=CLIENT_KEY) as edge,
    ):
        began_s = time.monotonic()
        async with asyncio.timeout(10):
            while "peer key" not in edge.peers["eu-west"].status()["why"]:
                await asyncio.sleep(0.01)
        for _ in range(10):
            with pytest.raises(openai.APIStatusError) as refused:
                await text_of(edge)
            assert refused.value.status_code == 503
            assert CLIENT_KEY not in str(refused.value)
        assert set(counting.paths) == {"/internal/v1/peer"}
        assert len(counting.paths) <= 1 + (time.monotonic() - began_s) / HealthPolicy().refused_s
        assert not engine.requests
