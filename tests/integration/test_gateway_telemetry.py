"""One trace for a request, metrics that say what happened, and neither with content."""

import asyncio

import httpx
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dayzero.engine.errors import EngineDeadError
from dayzero.telemetry import setup
from dayzero.testing.scripted_engine import ScriptedEngine, repeat
from tests.integration.gateways import MODEL, serving

SECRET = "hunter2-canary"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 4}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_request_with_a_retry_is_one_trace_with_sibling_attempts(smollm2):
    exporter = InMemorySpanExporter()
    tracing = setup("test", exporter)
    engines = {
        "a": ScriptedEngine(lambda _: [EngineDeadError("gone")]),
        "b": ScriptedEngine(repeat((300, 301))),
    }
    async with serving(engines, smollm2, tracing=tracing) as served, httpx.AsyncClient(timeout=30) as http:
        headers = served.headers | {"traceparent": TRACEPARENT}
        for _ in range(20):
            await http.post(f"{served.url}/v1/chat/completions", json=ASK, headers=headers)
            if (await served.settled())[-1].attempts == 2:
                break
            served.settlements.clear()
        assert tracing.flush()
        spans = exporter.get_finished_spans()
    last = [s for s in spans if s.name == "gateway.request"][-1]
    family = [s for s in spans if s.parent and s.parent.span_id == last.context.span_id]
    assert {f"{s.context.trace_id:032x}" for s in spans} == {"0af7651916cd43dd8448eb211c80319c"}
    assert last.parent.span_id == 0xB7AD6B7169203331
    assert [s.name for s in family].count("gateway.dispatch") == 2
    assert [s.name for s in family].count("gateway.place") == 2
    assert "gateway.render" in [s.name for s in family]
    assert last.attributes["dayzero.completion_tokens"] == 4
    assert last.attributes["http.response.status_code"] == 200
    assert last.attributes["dayzero.tenant"] == "acme"
    received = [request.trace["traceparent"] for engine in engines.values() for request in engine.requests]
    dispatched = {f"{s.context.span_id:016x}" for s in spans if s.name == "gateway.dispatch"}
    assert {carrier.split("-")[2] for carrier in received} == dispatched
    text = " ".join(str(s.attributes) + str(s.events) + str(s.status.description) for s in spans)
    assert SECRET not in text
    assert served.key not in text


async def test_metrics_count_what_happened_and_name_no_one(smollm2):
    engine = ScriptedEngine(repeat((300, 301)))
    async with serving({"a": engine}, smollm2) as served, httpx.AsyncClient(timeout=30) as http:
        before = (await http.get(f"{served.url}/metrics")).text
        assert "dayzero_gateway_requests_total{" not in before
        url = f"{served.url}/v1/chat/completions"
        await http.post(url, json=ASK, headers=served.headers)
        await http.post(url, json=ASK | {"stream": True}, headers=served.headers)
        await http.post(url, content=b"nonsense", headers=served.headers)
        await http.post(url, json=ASK)
        await served.settled(4)
        after = (await http.get(f"{served.url}/metrics")).text
    assert f'dayzero_gateway_completion_tokens_total{{model="{MODEL}"}} 8.0' in after
    assert f'finish="length",model="{MODEL}",route="chat_completions",status_class="2xx"}} 2.0' in after
    assert 'status_class="4xx"} 2.0' in after
    assert 'dayzero_gateway_rejected_bodies_total{cause="not_json"} 1.0' in after
    assert f'dayzero_gateway_in_flight_requests{{model="{MODEL}"}} 0.0' in after
    assert f'dayzero_gateway_first_token_seconds_count{{model="{MODEL}"}} 2.0' in after
    assert SECRET not in after
    assert served.key not in after
    assert "acme" not in after


class Refusing(SpanExporter):
    """A collector that takes nothing."""

    def export(self, spans):
        return SpanExportResult.FAILURE


async def test_spans_that_no_collector_takes_are_counted_where_an_operator_looks(smollm2):
    tracing = setup("test", Refusing())
    async with serving({"a": ScriptedEngine(repeat((300, 301)))}, smollm2, tracing=tracing) as served:
        assert b"dayzero_gateway_dropped_spans_total{" not in served.gateway.metrics_text()
        await served.client().chat.completions.create(**ASK)
        await served.settled()
        await asyncio.to_thread(tracing.flush)
        assert b'dayzero_gateway_dropped_spans_total{cause="export_failed"}' in served.gateway.metrics_text()
