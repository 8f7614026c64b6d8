"""Two and three regions over real HTTP: forwarding, leaving, traces, and one hop only."""

import asyncio

import httpx
import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dayzero.cli import region_table
from dayzero.engine.errors import ContextLengthError, EngineDeadError
from dayzero.engine.types import EngineRequest, Finish, Sampling, TokenDelta, pack_ids
from dayzero.gateway.lifetime import Outcome
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.serving.edge_gateway import answering
from dayzero.telemetry import setup
from dayzero.testing.scripted_engine import HANG, ScriptedEngine, say
from tests.integration.region_gateways import (
    ASK,
    CLIENT_KEY,
    MODEL,
    PEER_KEY,
    counted,
    region,
)

TEXT = "Paris is nice."


def engine_saying(frontend, text=TEXT, **options):
    ids = [*frontend._encoder.encode([text], at_start=False)[0].tolist(), frontend.stop_ids[0]]
    return ScriptedEngine(say(ids, **options))


def hanging():
    return ScriptedEngine(lambda _: [HANG])


async def text_of(region_, **options):
    answer = await region_.asking.chat.completions.create(**ASK, **options)
    return answer.choices[0].message.content


async def post(url, path, body, key, **headers):
    async with httpx.AsyncClient() as http:
        return await http.post(url + path, content=body, headers={"authorization": f"Bearer {key}"} | headers)


def a_request(**fields):
    given = {
        "request_id": "r1",
        "prompt_ids": pack_ids([1, 2, 3]),
        "sampling": Sampling(max_tokens=4),
    } | fields
    return EngineRequest(**given).encode()


async def test_an_edge_answers_with_another_regions_replicas(smollm2):
    engine = engine_saying(smollm2)
    async with (
        region("eu-west", smollm2, {"r1": engine}) as west,
        region("edge", smollm2, peers={"eu-west": west.url}) as edge,
    ):
        await edge.knows("eu-west")
        for _ in range(3):
            assert await text_of(edge) == TEXT
        stream = await edge.client().chat.completions.create(**ASK, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == TEXT
        await edge.check_nothing_is_left()
        await west.check_nothing_is_left()
        assert not engine.closed
        assert not engine.aborts
        assert {request.salt for request in engine.requests} != {""}


async def test_a_region_with_another_vocabulary_is_sent_nothing_and_the_status_says_why(smollm2):
    engine = engine_saying(smollm2)
    async with (
        region("eu-west", smollm2, {"r1": engine}, vocabulary="b2" * 32) as west,
        region("edge", smollm2, peers={"eu-west": west.url}, vocabulary="a1" * 32) as edge,
    ):
        await edge.knows("eu-west")
        with pytest.raises(openai.InternalServerError) as refused:
            await text_of(edge)
        assert refused.value.status_code == 503
        assert not engine.requests
        (line,) = edge.gateway.status()["regions"]
        assert line["up"]
        said = region_table._peer(line)
        assert f"its vocabulary of {MODEL} is another one: b2b2b2b2b2b2 there, a1a1a1a1a1a1 here" in said
        assert answering([line]) == [
            f"eu-west at {west.url} answers, but is not asked: {line['models'][0]['why']}"
        ]


async def test_a_whole_answer_is_booked_as_one_in_the_region_that_gave_it(smollm2):
    async with (
        region("eu-west", smollm2, {"r1": engine_saying(smollm2)}) as west,
        counted(west, slow_end_s=0.05) as (_, url),
        region("edge", smollm2, peers={"eu-west": url}) as edge,
    ):
        await edge.knows("eu-west")
        for _ in range(2):
            assert await text_of(edge) == TEXT
        await west.check_nothing_is_left()
        assert [(s.outcome, s.status, s.finish, s.tenant) for s in west.settlements] == [
            (Outcome.OK, 200, "stop", "acme")
        ] * 2


async def test_a_request_stays_home_while_home_is_able(smollm2):
    here, there = engine_saying(smollm2), engine_saying(smollm2, "Rome.")
    async with (
        region("eu-west", smollm2, {"r1": there}) as west,
        region("us-east", smollm2, {"r1": here}, peers={"eu-west": west.url}) as east,
    ):
        await east.knows("eu-west")
        assert [await text_of(east) for _ in range(3)] == [TEXT] * 3
        assert not there.requests


async def test_a_full_home_sends_a_request_to_its_peer(smollm2):
    there = engine_saying(smollm2, "Rome.")
    async with (
        region("eu-west", smollm2, {"r1": there}) as west,
        region(
            "us-east", smollm2, {"r1": hanging()}, peers={"eu-west": west.url}, slots=1, max_requests=1
        ) as east,
    ):
        await east.knows("eu-west")
        first = asyncio.create_task(text_of(east))
        while not east.local.book.total:
            await asyncio.sleep(0.005)
        assert await text_of(east) == "Rome."
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await east.check_nothing_is_left()
        text = east.gateway.metrics_text().decode()
        assert 'region_choices_total{region="eu-west",why="home_unable"} 1.0' in text
        assert 'forwarded_requests_total{outcome="answered",region="eu-west"} 1.0' in text
        assert 'peer_up{region="eu-west"} 1.0' in text


async def test_a_busy_home_sends_a_long_prompt_to_an_idle_peer(smollm2):
    here, there = hanging(), engine_saying(smollm2, "Rome.")
    async with (
        region("eu-west", smollm2, {"r1": there}) as west,
        region("us-east", smollm2, {"r1": here}, peers={"eu-west": west.url}, slots=1) as east,
    ):
        await east.knows("eu-west")
        busy = [asyncio.create_task(text_of(east)) for _ in range(8)]
        while east.local.book.total + east.peers["eu-west"].in_flight + len(there.requests) < 8:
            await asyncio.sleep(0.005)
        assert await text_of(east) == "Rome."
        text = east.gateway.metrics_text().decode()
        assert 'region_choices_total{region="eu-west",why="faster"}' in text
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        await east.check_nothing_is_left()


async def test_a_forwarded_request_is_not_forwarded_again(smollm2):
    """East is full, west is full, and only west knows of north, which is idle."""
    north_engine = engine_saying(smollm2)
    full = {"slots": 1, "max_requests": 1}
    async with (
        region("north", smollm2, {"r1": north_engine}) as north,
        region("eu-west", smollm2, {"r1": hanging()}, peers={"north": north.url}, **full) as west,
        region("us-east", smollm2, {"r1": hanging()}, peers={"eu-west": west.url}, **full) as east,
    ):
        await east.knows("eu-west")
        await west.knows("north")
        # West tells its load every half second: it is not yet known to be full when the request comes.
        west_task = asyncio.create_task(text_of(west))
        east_task = asyncio.create_task(text_of(east))
        while not (east.local.book.total and west.local.book.total):
            await asyncio.sleep(0.002)
        with pytest.raises(openai.APIStatusError) as refused:
            await text_of(east)
        assert refused.value.status_code == 503
        assert not north_engine.requests
        answer = await post(
            west.url, "/internal/v1/generate", a_request(), PEER_KEY, **{"dayzero-model": MODEL}
        )
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert not north_engine.requests
        for task in (west_task, east_task):
            task.cancel()
        await asyncio.gather(west_task, east_task, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_first", [False, True])
async def test_a_client_that_leaves_ends_the_work_in_the_other_region(smollm2, stream, tokens_first):
    ids = smollm2._encoder.encode(["one two three four"], at_start=False)[0].tolist()
    said = [TokenDelta(token_ids=(one,)) for one in ids] if tokens_first else []
    engine = ScriptedEngine(lambda _: [*said, HANG])
    async with (
        region("eu-west", smollm2, {"r1": engine}) as west,
        region("edge", smollm2, peers={"eu-west": west.url}) as edge,
    ):
        await edge.knows("eu-west")
        asking = asyncio.create_task(edge.client().chat.completions.create(**ASK, stream=stream))
        async with asyncio.timeout(10):
            while not engine.stats().running:
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        if stream and tokens_first:
            await (await asking).close()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(10):
            while engine.stats().running:
                await asyncio.sleep(0.002)
        await edge.check_nothing_is_left()
        await west.check_nothing_is_left()
        assert len(engine.closed) == 1
        assert [s.outcome for s in west.settlements] == [Outcome.CLIENT_GONE]


async def test_an_engines_refusal_comes_back_as_the_requests_own_fault_and_is_not_retried(smollm2):
    engine = ScriptedEngine(lambda _: [ContextLengthError("too long", param="prompt_ids")])
    async with (
        region("eu-west", smollm2, {"r1": engine}) as west,
        region("edge", smollm2, peers={"eu-west": west.url}) as edge,
    ):
        await edge.knows("eu-west")
        with pytest.raises(openai.BadRequestError) as refused:
            await text_of(edge)
        assert refused.value.param == "messages"
        assert len(engine.requests) == 1
        assert edge.peers["eu-west"].up


async def test_a_dead_replica_of_the_only_region_is_avoided_there(smollm2):
    """One region, two replicas, one of them dead: the second try names it, and the region takes the other."""
    dead, alive = ScriptedEngine(lambda _: [EngineDeadError("gone")]), engine_saying(smollm2)
    async with (
        region("eu-west", smollm2, {"r1": dead, "r2": alive}) as west,
        region("edge", smollm2, peers={"eu-west": west.url}) as edge,
    ):
        await edge.knows("eu-west")
        assert [await text_of(edge) for _ in range(12)] == [TEXT] * 12
        assert dead.requests
        assert len(alive.requests) == 12
        assert all(s.attempts <= 2 for s in edge.settlements)


async def test_a_tenants_data_stays_where_it_may_be_processed(smollm2):
    here, there = engine_saying(smollm2), engine_saying(smollm2, "Rome.")
    async with (
        region("eu-west", smollm2, {"r1": there}) as west,
        region(
            "us-east", smollm2, {"r1": here}, peers={"eu-west": west.url}, residency={"acme": ["eu-west"]}
        ) as east,
    ):
        await east.knows("eu-west")
        assert await text_of(east) == "Rome."
        assert not here.requests
        elsewhere = a_request(regions=("us-east",))
        answer = await post(
            west.url, "/internal/v1/generate", elsewhere, PEER_KEY, **{"dayzero-model": MODEL}
        )
        assert answer.status_code == 400
        assert len(there.requests) == 1


async def test_a_slow_stream_is_kept_alive_by_heartbeats(smollm2):
    """Two tokens, and before each more than twice as long as a silent stream may last."""
    policy = RegionsPolicy(heartbeat_s=0.1, lost_after_s=1.0)
    ids = smollm2._encoder.encode(["one two"], at_start=False)[0].tolist()
    engine = ScriptedEngine(
        lambda _: [
            2.2,
            TokenDelta(token_ids=(ids[0],)),
            2.2,
            TokenDelta(token_ids=(*ids[1:], smollm2.stop_ids[0]), finish=Finish.STOP),
        ]
    )
    async with (
        region("eu-west", smollm2, {"r1": engine}, policy=policy) as west,
        region("edge", smollm2, peers={"eu-west": west.url}, policy=policy) as edge,
    ):
        await edge.knows("eu-west")
        assert await text_of(edge) == "one two"
        assert [s.attempts for s in edge.settlements] == [1]


async def test_a_request_over_two_regions_is_one_trace(smollm2):
    exporter = InMemorySpanExporter()
    tracing = setup("test", exporter)
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    engine = engine_saying(smollm2)
    async with (
        region("eu-west", smollm2, {"r1": engine}, tracing=tracing) as west,
        region("edge", smollm2, peers={"eu-west": west.url}, tracing=tracing) as edge,
        httpx.AsyncClient(base_url=edge.url) as http,
    ):
        await edge.knows("eu-west")
        headers = {"authorization": f"Bearer {CLIENT_KEY}", "traceparent": traceparent}
        assert (await http.post("/v1/chat/completions", json=ASK, headers=headers)).status_code == 200
        await west.check_nothing_is_left()
        assert tracing.flush()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    assert {f"{s.context.trace_id:032x}" for s in spans.values()} == {traceparent.split("-")[1]}
    sent = [s for s in spans.values() if s.name == "gateway.dispatch"]
    names, here = [], next(s for s in sent if s.attributes["dayzero.replica"] == "r1")
    while here is not None:
        names.append(here.name)
        here = spans.get(here.parent.span_id)
    assert names == ["gateway.dispatch", "gateway.request", "gateway.dispatch", "gateway.request"]
    assert {s.attributes["dayzero.replica"] for s in sent} == {"r1", "eu-west/r1"}
    placed = next(s for s in spans.values() if s.attributes.get("dayzero.region.target") == "eu-west")
    assert placed.attributes["dayzero.region.why"] == "no_home"
    assert {r.trace["traceparent"].split("-")[1] for r in engine.requests} == {traceparent.split("-")[1]}
