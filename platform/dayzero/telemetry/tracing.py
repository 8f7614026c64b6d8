"""Spans: one trace for a request, over every process it passes.

- Context is data: a span's parent is given, and crosses to another process as a W3C carrier (`inject`, `extract`).
  Nothing is read from or left in ambient state, save inside `with span.current()`.
- Whether a trace is kept is decided once, at our edge (`OTEL_TRACES_SAMPLER`; by default always); everyone after it
  follows the parent.
- A span holds what `names` lists and nothing else. An error leaves its class, never its message.
- Switched off, a span is one shared object, and what a caller sent is still handed on.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dayzero.telemetry.export import (
    BoundedProcessor,
    DropCause,
    OnDrop,
    exporter_from_environment,
    traces_endpoint,
)
from dayzero.telemetry.names import MAX_VALUE_CHARACTERS, Attribute, SpanEvent, SpanName

Carrier = dict[str, str]
"""`traceparent` and, where there is one, `tracestate`: no other key."""

Value = str | int | float | bool

_FORMAT = TraceContextTextMapPropagator()
_FIELDS = {"traceparent": 64, "tracestate": 512}
"""The headers that are read, and how long each may be: what is longer is not ours to carry."""
_NO_CONTEXT = Context()


class Span:
    """A span that records. End it once; ending it again does nothing."""

    __slots__ = ("_ended", "_span", "_tracer")

    def __init__(self, span: trace.Span, tracer: trace.Tracer | None) -> None:
        self._span = span
        self._tracer = tracer
        self._ended = False

    @property
    def recording(self) -> bool:
        """Whether anybody will see what is set; ask before working something out only for the span."""
        return self._span.is_recording()

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits, for logs."""
        context = self._span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None

    def child(self, name: SpanName) -> "Span":
        if self._tracer is None:
            return self
        return _start(self._tracer, name, trace.set_span_in_context(self._span, _NO_CONTEXT))

    def set(self, name: Attribute, value: Value | None) -> None:
        """None sets nothing: what is not known is absent."""
        if value is not None and self._tracer is not None:
            self._span.set_attribute(Attribute(name), value)

    def event(self, name: SpanEvent) -> None:
        if self._tracer is not None:
            self._span.add_event(SpanEvent(name))

    def fail(self, error: BaseException) -> None:
        """Marks the span as failed, with the class of the error."""
        kind = type(error).__name__
        self._span.set_attribute(Attribute.ERROR_TYPE, kind)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        if not self._ended and self._tracer is not None:
            self._ended = True
            self._span.end()

    @contextmanager
    def current(self) -> Iterator[None]:
        """OpenTelemetry's current span, for libraries that look for one. Never hold it over an await or a yield."""
        with trace.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        ):
            yield

    def carrier(self) -> Carrier:
        carrier: Carrier = {}
        _FORMAT.inject(carrier, trace.set_span_in_context(self._span, _NO_CONTEXT))
        return carrier

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):  # its reader had enough: no failure
            self.fail(error)
        self.end()


def _start(tracer: trace.Tracer, name: SpanName, context: Context) -> Span:
    return Span(tracer.start_span(SpanName(name), context), tracer)


OFF = Span(trace.INVALID_SPAN, None)
"""Records nothing and belongs to no trace."""


class Tracing:
    """A process's tracing, made by `setup`. `service` names the process in traces."""

    def __init__(self, tracer: trace.Tracer | None = None, processor: BoundedProcessor | None = None) -> None:
        self._tracer = tracer
        self._processor = processor

    @property
    def on(self) -> bool:
        return self._tracer is not None

    @property
    def dropped(self) -> Mapping[DropCause, int]:
        """Spans lost so far, by cause."""
        return dict(self._processor.dropped) if self._processor else {}

    def report_drops(self, on_drop: OnDrop) -> None:
        """Calls `on_drop` for spans that are lost from here on, from whichever thread loses them."""
        if self._processor is not None:
            self._processor.on_drop = on_drop

    def start(self, name: SpanName, parent: SpanContext | None = None) -> Span:
        """A span under `parent` (from `extract`), or the root of a new trace."""
        if self._tracer is None:
            return OFF if parent is None else Span(NonRecordingSpan(parent), None)
        context = _NO_CONTEXT
        if parent is not None:
            context = trace.set_span_in_context(NonRecordingSpan(parent), _NO_CONTEXT)
        return _start(self._tracer, name, context)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """True when everything that ended was exported within the time."""
        return self._processor is None or self._processor.force_flush(int(timeout_s * 1000))

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """Exports what it can within the time; spans that end later are dropped."""
        if self._processor is not None:
            self._processor.shutdown(timeout_s)


def setup(
    service: str,
    exporter: SpanExporter | None = None,
    *,
    on_drop: OnDrop | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Tracing:
    """Tracing for this process: to `exporter`, else as the OTEL_* variables say, else off.

    Call it in the process that traces, after any fork. Raises TelemetrySetupError.
    """
    exporter = exporter or exporter_from_environment(environ)
    if exporter is None:
        return Tracing()
    processor = BoundedProcessor(exporter, on_drop=on_drop)
    limits = SpanLimits(max_attribute_length=MAX_VALUE_CHARACTERS)
    # Shutdown is ours and bounded: the SDK's own at exit waits for the collector. Not the global provider: in a
    # Serve replica that is Ray's.
    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), span_limits=limits, shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    return Tracing(provider.get_tracer("dayzero"), processor)


class Roots:
    """Traces for requests that brought none; OTEL_TRACES_SAMPLER says which of them are kept.

    Where no spans are sent none is kept, so that libraries that follow the parent make no spans either.
    """

    def __init__(self) -> None:
        sent = traces_endpoint(os.environ) is not None
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler if sent else ALWAYS_OFF

    def new(self) -> Carrier:
        trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
        decision = self._sampler.should_sample(None, int(trace_id, 16), SpanName.REQUEST).decision
        kept = "01" if decision is Decision.RECORD_AND_SAMPLE else "00"
        return {"traceparent": f"00-{trace_id}-{span_id}-{kept}"}


def serve_span_processors() -> list[SpanProcessor]:
    """For Ray Serve's own spans: name it in RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH as `module:function`."""
    exporter = exporter_from_environment(os.environ)
    return [BoundedProcessor(exporter)] if exporter else []


@contextmanager
def continued(carrier: Mapping[str, str]) -> Iterator[None]:
    """A carrier's span as OpenTelemetry's current one, for libraries that look there. Never hold it over an await."""
    parent = extract(carrier)
    if parent is None:
        yield
        return
    with trace.use_span(NonRecordingSpan(parent), end_on_exit=False):
        yield


def inject(span: Span) -> Carrier:
    """What another process needs to continue under `span`; empty where there is no trace."""
    return span.carrier()


def extract(carrier: Mapping[str, str]) -> SpanContext | None:
    """The parent that a carrier or a request's headers name, or None. Never raises; reads no other header."""
    known = {
        name: value
        for key, value in carrier.items()
        if (name := key.lower()) in _FIELDS and len(value) <= _FIELDS[name]
    }
    if "traceparent" not in known:
        return None
    context = trace.get_current_span(_FORMAT.extract(known, _NO_CONTEXT)).get_span_context()
    return context if context.is_valid else None
