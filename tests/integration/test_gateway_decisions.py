"""Decisions over real HTTP: every placed request can be explained, however it ended, and nothing of it leaks."""

import asyncio

import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.simulated_output import OutputVoice
from dayzero.engine.simulated_profile import load_profile
from dayzero.gateway.decisions import DecisionLog
from dayzero.gateway.retry import RetryPolicy
from dayzero.serving.engines.sim import SimulatedEngine
from dayzero.telemetry import setup
from dayzero.testing.scripted_engine import HANG, ScriptedEngine, repeat
from tests.integration.gateways import MODEL, serving

SECRET = "hunter2-canary"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": f"{SECRET} word " * 40}], "max_tokens": 4}


class Store:
    """The region's store, in memory."""

    def __init__(self):
        self.kept = {}

    def keep(self, request_id, record):
        self.kept[request_id] = record

    async def find(self, request_id):
        return self.kept.get(request_id)


def simulated():
    return SimulatedEngine(load_profile("instant"), OutputVoice.of(range(300, 400), 2))


def dying(_):
    return [EngineDeadError("gone")]


async def post(served, http, **fields):
    answer = await http.post(f"{served.url}/v1/chat/completions", json=ASK | fields, headers=served.headers)
    return answer, answer.headers["x-request-id"]


async def decision(served, http, request_id, key=None):
    return await http.get(
        f"{served.url}/internal/v1/decisions/{request_id}",
        headers={"authorization": f"Bearer {key or served.operator_key}"},
    )


async def test_a_requests_decision_can_be_read_back_by_any_of_its_ids(smollm2):
    # "a" is believed to hold 64 tokens of every prompt; it holds none the first time.
    engines = {"a": simulated(), "b": simulated()}
    async with (
        serving(engines, smollm2, reusable=lambda _: {"a": 64, "b": 0}) as served,
        httpx.AsyncClient(timeout=30) as http,
    ):
        answer, request_id = await post(served, http)
        completion_id = answer.json()["id"]
        await served.settled()
        records = [
            (await decision(served, http, one)).json()
            for one in (request_id, request_id.removeprefix("req_"), completion_id)
        ]
        assert records[0] == records[1] == records[2]
        record = records[0]
        assert (record["request_id"], record["region"], record["model"]) == (request_id, "test", MODEL)
        assert (record["tenant"], record["outcome"], record["status"]) == ("acme", "ok", 200)
        assert (record["finish"], record["completion_tokens"]) == ("length", 4)
        assert record["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
        (attempt,) = record["attempts"]
        assert [c["replica"] for c in attempt["candidates"]] == ["a", "b"]
        assert [c["reusable_tokens"] for c in attempt["candidates"]] == [64, 0]
        assert "by its cache" in attempt["reason"]
        assert (attempt["replica"], attempt["predicted_cached_tokens"], attempt["cached_tokens"]) == (
            "a",
            64,
            0,
        )
        assert 0 < attempt["first_token_s"] <= record["first_token_s"] <= record["total_s"]
        await served.check_nothing_is_left()


async def test_hit_and_phantom_rates_are_in_the_status_and_the_metrics(smollm2):
    async with (
        serving({"a": simulated()}, smollm2, reusable=lambda _: {"a": 64}) as served,
        httpx.AsyncClient(timeout=30) as http,
    ):
        operator = {"authorization": f"Bearer {served.operator_key}"}
        before = (await http.get(f"{served.url}/internal/v1/status", headers=operator)).json()["cache"]
        assert set(before) == {"window_s"}
        for _ in range(2):
            answer, _ = await post(served, http)
        usage = answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached > 64
        await served.settled(2)
        cache = (await http.get(f"{served.url}/internal/v1/status", headers=operator)).json()["cache"]
        assert cache["hit_rate"] == pytest.approx(cached / (2 * usage["prompt_tokens"]), abs=0.01)
        assert cache["phantom_rate"] == pytest.approx(0.5, abs=0.01)
        assert cache["phantom_tokens_total"] == 64
        assert cache["missed_tokens_total"] == cached - 64
        metrics = (await http.get(f"{served.url}/metrics")).text
        for name, value in (("predicted", 128.0), ("phantom", 64.0), ("missed", cached - 64.0)):
            assert f'dayzero_gateway_{name}_cached_tokens_total{{model="{MODEL}"}} {value}' in metrics


async def test_after_retries_every_attempt_is_there(smollm2):
    engines = {"a": ScriptedEngine(dying), "b": ScriptedEngine(repeat((300, 301)))}
    async with (
        serving(engines, smollm2, reusable=lambda _: {"a": 64, "b": 0}) as served,
        httpx.AsyncClient(timeout=30) as http,
    ):
        answer, request_id = await post(served, http)
        assert answer.status_code == 200
        await served.settled()
        record = (await decision(served, http, request_id)).json()
    first, second = record["attempts"]
    assert (first["replica"], first["error"], first["retried"]) == ("a", "engine_dead", True)
    assert "first_token_s" not in first
    assert (second["replica"], second.get("error"), second["number"]) == ("b", None, 2)
    assert second["skipped"] == [{"replica": "a", "why": "failed this request"}]
    assert [request.expected_cached_tokens for request in engines["a"].requests] == [64]
    assert [request.expected_cached_tokens for request in engines["b"].requests] == [0]


async def test_an_errored_request_is_explained_too(smollm2):
    engines = {name: ScriptedEngine(dying) for name in "ab"}
    async with (
        serving(engines, smollm2, retry=RetryPolicy(max_attempts=5)) as served,
        httpx.AsyncClient(timeout=30) as http,
    ):
        answer, request_id = await post(served, http)
        assert answer.status_code == 503
        await served.settled()
        record = (await decision(served, http, request_id)).json()
    assert [attempt["error"] for attempt in record["attempts"]] == [
        "engine_dead",
        "engine_dead",
        "no_replica_available",
    ]
    assert "2 failed this request" in record["attempts"][-1]["reason"]
    assert (record["outcome"], record["status"], record["error"]) == ("error", 503, "no_replica_available")
    for attempt in record["attempts"]:
        assert "predicted_cached_tokens" not in attempt, "nobody knew what was cached"


async def test_a_client_that_leaves_leaves_a_decision(smollm2):
    engine = ScriptedEngine(lambda _: [HANG])
    async with serving({"a": engine}, smollm2) as served, httpx.AsyncClient(timeout=30) as http:
        asking = asyncio.create_task(post(served, http, stream=True))
        while not engine.requests:
            await asyncio.sleep(0.005)
        asking.cancel()
        (settlement,) = await served.settled()
        record = (await decision(served, http, settlement.request_id)).json()
        assert (record["outcome"], record["attempts"][0]["replica"]) == ("client_gone", "a")
        await served.check_nothing_is_left()


async def test_nothing_of_the_prompt_or_the_key_is_in_a_record(smollm2):
    store = Store()
    engines = {"a": ScriptedEngine(dying), "b": simulated()}
    async with (
        serving(engines, smollm2, decision_sink=store) as served,
        httpx.AsyncClient(timeout=30) as http,
    ):
        for _ in range(6):
            await post(served, http, user=SECRET, prompt_cache_key=SECRET)
        await served.settled(6)
    assert len(store.kept) == 6
    for record in store.kept.values():
        text = record.decode()
        assert SECRET not in text
        assert "word" not in text
        assert served.key not in text
        assert "prompt_ids" not in text


async def test_what_another_gateway_of_the_region_decided_is_found_in_the_store(smollm2):
    store = Store()
    async with (
        serving({"a": simulated()}, smollm2, decision_sink=store) as served,
        httpx.AsyncClient(timeout=30) as http,
    ):
        _, request_id = await post(served, http)
        await served.settled()
        served.gateway.decisions = DecisionLog("test", store)  # as a gateway that has just started
        answer = await decision(served, http, request_id)
    assert answer.json()["request_id"] == request_id


async def test_decisions_are_for_the_operator_and_an_unknown_id_says_how_long_they_are_kept(smollm2):
    async with serving({"a": simulated()}, smollm2) as served, httpx.AsyncClient(timeout=30) as http:
        _, request_id = await post(served, http)
        await served.settled()
        assert (await decision(served, http, request_id, key=served.key)).status_code == 403
        assert (await decision(served, http, request_id, key="sk-none")).status_code == 401
        missing = await decision(served, http, "req_unknown")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "decision_not_found"
        assert "kept for 60 minutes" in missing.json()["error"]["message"]
        # Refused before it was placed: there is nothing to explain.
        refused, refused_id = await post(served, http, model="no-such-model")
        assert refused.status_code == 404
        assert (await decision(served, http, refused_id)).status_code == 404


async def test_spans_carry_the_decision(smollm2):
    exporter = InMemorySpanExporter()
    tracing = setup("test", exporter)
    async with (
        serving({"a": simulated()}, smollm2, reusable=lambda _: {"a": 64}, tracing=tracing) as served,
        httpx.AsyncClient(timeout=30) as http,
    ):
        for _ in range(2):
            answer, _ = await post(served, http)
        await served.settled(2)
        assert tracing.flush()
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    spans = {span.name: span.attributes for span in exporter.get_finished_spans()}  # the last of each name
    placed, request = spans["gateway.place"], spans["gateway.request"]
    assert placed["dayzero.replica"] == request["dayzero.replica"] == "a"
    for span in (placed, request):
        assert span["dayzero.placement.predicted_cached_tokens"] == 64
        assert span["dayzero.placement.predicted_s"] > 0
    assert "64 of" in placed["dayzero.placement.reason"]
    assert request["dayzero.cached_tokens"] == cached
