"""Tracing: one trace over processes, nothing but listed attributes, a collector that hangs, off is cheap."""

import os
import pathlib
import pickle
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dayzero.telemetry import (
    Attribute,
    DropCause,
    SpanEvent,
    SpanName,
    TelemetrySetupError,
    extract,
    inject,
    setup,
)
from dayzero.telemetry.export import BoundedProcessor
from dayzero.telemetry.names import MAX_VALUE_CHARACTERS
from dayzero.telemetry.reference import described, traces_page
from dayzero.telemetry.tracing import OFF, Tracing, serve_span_processors

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = TRACEPARENT[:-1] + "0"


@pytest.fixture
def traced():
    exporter = InMemorySpanExporter()
    tracing = setup("test", exporter)
    yield tracing, exporter
    tracing.shutdown()


def finished(tracing, exporter):
    assert tracing.flush()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_is_one_trace_over_processes_and_its_attempts_are_siblings(traced):
    tracing, exporter = traced
    replica_exporter = InMemorySpanExporter()
    replica = setup("replica", replica_exporter)
    with tracing.start(SpanName.REQUEST, extract({"traceparent": TRACEPARENT})) as request:
        for attempt in (1, 2):
            with request.child(SpanName.DISPATCH) as dispatch:
                dispatch.set(Attribute.ATTEMPT, attempt)
                carrier = inject(dispatch)
                with replica.start(SpanName.GENERATE, extract(carrier)):
                    pass
    tracing.flush()
    spans = exporter.get_finished_spans()
    replica.flush()
    generated = replica_exporter.get_finished_spans()
    replica.shutdown()
    root = next(span for span in spans if span.name == "gateway.request")
    attempts = [span for span in spans if span.name == "gateway.dispatch"]
    assert {span.context.trace_id for span in (*spans, *generated)} == {0x0AF7651916CD43DD8448EB211C80319C}
    assert root.parent.span_id == 0xB7AD6B7169203331
    assert {span.parent.span_id for span in attempts} == {root.context.span_id}
    assert [span.parent.span_id for span in generated] == [span.context.span_id for span in attempts]
    assert root.resource.attributes["service.name"] == "test"


def test_without_a_caller_a_request_begins_a_trace(traced):
    tracing, exporter = traced
    with tracing.start(SpanName.REQUEST) as span:
        assert inject(span)["traceparent"].split("-")[1] == span.trace_id
    assert finished(tracing, exporter)["gateway.request"].parent is None


def test_a_caller_that_does_not_keep_its_trace_is_followed_by_everyone(traced):
    tracing, exporter = traced
    with tracing.start(SpanName.REQUEST, extract({"traceparent": UNSAMPLED})) as span:
        assert not span.recording
        assert inject(span)["traceparent"].endswith("-00")
        span.child(SpanName.RENDER).end()
    assert finished(tracing, exporter) == {}


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
def test_a_carrier_is_read_whatever_the_case_and_nothing_else_of_it(name):
    headers = {
        name: TRACEPARENT,
        "tracestate": "a=b",
        "baggage": "tenant=acme",
        "authorization": "Bearer dz-secret",
    }
    tracing = Tracing()
    carried = inject(tracing.start(SpanName.REQUEST, extract(headers)))
    assert carried == {"traceparent": TRACEPARENT, "tracestate": "a=b"}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        "x" * 55,
        TRACEPARENT + "-" + "0" * 60,
        TRACEPARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
    ],
)
def test_a_broken_traceparent_is_no_parent(value):
    assert extract({"traceparent": value}) is None


@given(st.dictionaries(st.sampled_from(["traceparent", "tracestate", "x"]), st.text(), max_size=3))
def test_no_header_can_make_reading_fail(headers):
    assert extract(headers) is None


def test_a_long_tracestate_is_left_behind():
    for members, kept in ((2, True), (3, False)):
        state = ",".join(f"k{i}={'b' * 200}" for i in range(members))
        parent = extract({"traceparent": TRACEPARENT, "tracestate": state})
        carried = inject(Tracing().start(SpanName.REQUEST, parent))
        assert carried["traceparent"] == TRACEPARENT
        assert carried.get("tracestate") == (state if kept else None)


def test_attributes_are_those_of_the_list_and_cut(traced):
    tracing, exporter = traced
    with tracing.start(SpanName.REQUEST) as span:
        for name in Attribute:
            span.set(name, "x" * 10_000)
        for _ in range(500):
            span.set(Attribute.TOOLS, 200)
        span.set(Attribute.FINISH, None)
        span.event(SpanEvent.FIRST_TOKEN)
        with pytest.raises(ValueError, match="prompt"):
            span.set("prompt", "secret")
        with pytest.raises(ValueError, match="prompt"):
            span.event("prompt")
        with pytest.raises(ValueError, match="prompt"):
            span.child("prompt")
    span = finished(tracing, exporter)["gateway.request"]
    assert set(span.attributes) == set(Attribute)
    assert {len(value) for value in span.attributes.values() if isinstance(value, str)} == {
        MAX_VALUE_CHARACTERS
    }
    assert span.dropped_attributes == 0
    assert [event.name for event in span.events] == ["first_token"]
    assert len(Attribute) < 64


def test_an_error_leaves_its_class_and_never_its_message(traced):
    tracing, exporter = traced
    with pytest.raises(KeyError), tracing.start(SpanName.REQUEST):
        raise KeyError("canary-secret")
    span = finished(tracing, exporter)["gateway.request"]
    assert span.attributes == {"error.type": "KeyError"}
    assert span.status.status_code is trace.StatusCode.ERROR
    assert "canary-secret" not in span.to_json()


def test_a_reader_that_has_enough_is_no_error(traced):
    tracing, exporter = traced

    def tokens():
        with tracing.start(SpanName.DISPATCH):
            yield from range(9)

    answer = tokens()
    next(answer)
    answer.close()
    assert "error.type" not in finished(tracing, exporter)["gateway.dispatch"].attributes


def test_a_span_may_be_ended_twice_and_is_exported_once(traced, caplog):
    tracing, exporter = traced
    span = tracing.start(SpanName.REQUEST)
    span.end()
    span.end()
    tracing.flush()
    assert len(exporter.get_finished_spans()) == 1
    assert caplog.records == []


def test_current_is_for_libraries_and_ends_with_its_block(traced):
    tracing, _ = traced
    span = tracing.start(SpanName.REQUEST)
    with span.current():
        assert trace.format_trace_id(trace.get_current_span().get_span_context().trace_id) == span.trace_id
    assert trace.get_current_span() is trace.INVALID_SPAN
    span.end()


def test_off_without_variables_and_a_callers_trace_is_still_handed_on():
    tracing = setup("test", environ={})
    assert not tracing.on
    assert tracing.start(SpanName.REQUEST) is OFF
    assert OFF.child(SpanName.RENDER) is OFF
    assert inject(OFF) == {}
    span = tracing.start(SpanName.REQUEST, extract({"traceparent": TRACEPARENT}))
    assert inject(span.child(SpanName.DISPATCH)) == {"traceparent": TRACEPARENT}
    with pytest.raises(KeyError), span:
        raise KeyError
    tracing.shutdown()


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ],
)
def test_the_usual_variables_switch_it_off(environ):
    assert not setup("test", environ=environ).on


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "OTEL_TRACES_EXPORTER"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "http/protobuf",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_set(environ, said):
    with pytest.raises(TelemetrySetupError, match=said) as caught:
        setup("test", environ=environ)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_spans_arrive_at_a_collector_over_http(monkeypatch):
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    tracing = setup("dayzero-gateway")
    with tracing.start(SpanName.REQUEST) as span:
        span.set(Attribute.MODEL, "m")
    assert tracing.flush(5)
    tracing.shutdown()
    server.shutdown()
    server.server_close()
    ((path, body),) = bodies
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    names = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert path == "/v1/traces"
    assert names["service.name"] == "dayzero-gateway"
    assert [span.name for span in resource.scope_spans[0].spans] == ["gateway.request"]
    assert dict(tracing.dropped) == {DropCause.QUEUE_FULL: 0, DropCause.EXPORT_FAILED: 0}


class Stuck(SpanExporter):
    """Takes a batch and does not come back until told."""

    def __init__(self):
        self.entered = threading.Event()
        self.leave = threading.Event()

    def export(self, spans):
        self.entered.set()
        self.leave.wait()
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass


def test_a_collector_that_hangs_costs_spans_and_neither_time_nor_memory():
    exporter, told = Stuck(), []
    processor = BoundedProcessor(
        exporter, queue_spans=100, on_drop=lambda cause, spans: told.append((cause, spans))
    )
    spans = _ended_spans(1)
    for _ in range(100):
        processor.on_end(spans[0])
    assert exporter.entered.wait(5)
    began = time.monotonic()
    for _ in range(1000):
        processor.on_end(spans[0])
    assert time.monotonic() - began < 0.5
    assert processor.dropped[DropCause.QUEUE_FULL] == 900
    assert told == [(DropCause.QUEUE_FULL, 1)] * 900
    began = time.monotonic()
    processor.shutdown(timeout_s=0.2)
    assert time.monotonic() - began < 1
    exporter.leave.set()


class Failing(SpanExporter):
    def __init__(self, how):
        self.how = how

    def export(self, spans):
        return self.how()

    def shutdown(self):
        pass


def refuse():
    return SpanExportResult.FAILURE


def explode():
    raise ConnectionError


@pytest.mark.parametrize("how", [refuse, explode])
def test_spans_that_the_collector_refuses_are_counted(how):
    tracing = setup("test", Failing(how))
    for _ in range(7):
        tracing.start(SpanName.REQUEST).end()
    tracing.flush()
    tracing.shutdown()
    assert tracing.dropped == {DropCause.QUEUE_FULL: 0, DropCause.EXPORT_FAILED: 7}


def test_a_process_ends_at_once_though_its_collector_swallows_everything():
    with socket.create_server(("127.0.0.1", 0)) as swallow:
        code = (
            "from dayzero.telemetry import setup, SpanName\n"
            "tracing = setup('test')\n"
            "for _ in range(2000): tracing.start(SpanName.REQUEST).end()\n"
            "tracing.shutdown(1.0)\n"
            "print('ended')\n"
        )
        environ = os.environ | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{swallow.getsockname()[1]}",
            "PYTHONPATH": os.pathsep.join(["platform", "router", "deployments"]),
        }
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "ended"
        assert time.monotonic() - began < 5


def test_switched_off_a_span_costs_microseconds():
    tracing = Tracing()
    rounds = 5000
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(rounds):
            with tracing.start(SpanName.REQUEST) as span:
                span.set(Attribute.PROMPT_TOKENS, 1)
                with span.child(SpanName.RENDER):
                    pass
        best = min(best, (time.perf_counter() - began) / rounds)
    assert best < 20e-6


def test_ray_serve_gets_a_processor_only_where_spans_are_asked_for(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert serve_span_processors() == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    (processor,) = serve_span_processors()
    assert isinstance(processor, BoundedProcessor)
    processor.shutdown()


def test_every_name_is_described_and_the_page_is_what_the_names_say():
    for kind in (SpanName, Attribute, SpanEvent):
        assert [name for name, _ in described(kind)] == list(kind)
    assert pathlib.Path("docs/reference/traces.md").read_text() == traces_page(), (
        "run: python -m dayzero.telemetry.reference traces > docs/reference/traces.md"
    )


def _ended_spans(count):
    exporter = InMemorySpanExporter()
    tracing = setup("test", exporter)
    for _ in range(count):
        tracing.start(SpanName.REQUEST).end()
    tracing.flush()
    tracing.shutdown()
    return exporter.get_finished_spans()
