"""Finished spans on their way out, off the request's path.

- Ending a span puts it in a bounded queue and returns; a thread exports batches. A collector that is gone or
  hangs costs spans, never time.
- Every span that is lost is counted by cause, once.
- Shutting down takes at most the time given.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from dayzero.telemetry.errors import TelemetrySetupError

QUEUE_SPANS = 4096
_BATCH_SPANS = 512
_SCHEDULE_MS = 500


class DropCause(StrEnum):
    QUEUE_FULL = "queue_full"
    """More spans ended than the collector takes."""
    EXPORT_FAILED = "export_failed"
    """The collector refused them or did not answer."""


OnDrop = Callable[[DropCause, int], None]


def traces_endpoint(environ: Mapping[str, str]) -> str | None:
    """The URL that spans are sent to where the OTEL_* variables ask for it, else None. Raises TelemetrySetupError."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    wanted = environ.get("OTEL_TRACES_EXPORTER", "otlp") or "otlp"
    if wanted == "none":
        return None
    if wanted != "otlp":
        raise TelemetrySetupError("OTEL_TRACES_EXPORTER: only otlp and none are there; set one of them")
    traces, everything = "OTEL_EXPORTER_OTLP_TRACES", "OTEL_EXPORTER_OTLP"
    endpoint = environ.get(f"{traces}_ENDPOINT")
    if not endpoint and (base := environ.get(f"{everything}_ENDPOINT")):
        endpoint = f"{base.rstrip('/')}/v1/traces"
    if not endpoint:
        return None
    protocol = environ.get(f"{traces}_PROTOCOL") or environ.get(f"{everything}_PROTOCOL") or "http/protobuf"
    if protocol != "http/protobuf":
        raise TelemetrySetupError(
            "OTEL_EXPORTER_OTLP_PROTOCOL: spans are sent as http/protobuf only; set that and the collector's HTTP port"
        )
    return endpoint


def exporter_from_environment(environ: Mapping[str, str]) -> SpanExporter | None:
    """OTLP over HTTP where the OTEL_* variables ask for it, else None. Raises TelemetrySetupError."""
    endpoint = traces_endpoint(environ)
    return OTLPSpanExporter(endpoint=endpoint) if endpoint else None


class BoundedProcessor(SpanProcessor):
    """OpenTelemetry's batching with a count of what is lost. Never blocks `on_end`."""

    def __init__(
        self, exporter: SpanExporter, *, queue_spans: int = QUEUE_SPANS, on_drop: OnDrop | None = None
    ) -> None:
        self.on_drop = on_drop
        self._queue_spans = queue_spans
        self._waiting = 0
        self._lock = threading.Lock()
        self.dropped: dict[DropCause, int] = dict.fromkeys(DropCause, 0)
        # Ours is the bound that counts; twice as much in the SDK's queue is never filled.
        self._batches = BatchSpanProcessor(
            _CountedExporter(exporter, self),
            max_queue_size=2 * queue_spans,
            max_export_batch_size=min(_BATCH_SPANS, queue_spans),
            schedule_delay_millis=_SCHEDULE_MS,
        )

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            full = self._waiting >= self._queue_spans
            self._waiting += 0 if full else 1
        if full:
            self.drop(DropCause.QUEUE_FULL, 1)
        else:
            self._batches.on_end(span)

    def taken(self, spans: int) -> None:
        """`spans` left the queue for the exporter."""
        with self._lock:
            self._waiting -= spans

    def drop(self, cause: DropCause, spans: int) -> None:
        with self._lock:
            self.dropped[cause] += spans
        if self.on_drop is not None:
            self.on_drop(cause, spans)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """True when everything that ended before was exported within the time."""
        return _within(lambda: self._batches.force_flush(timeout_millis), timeout_millis / 1000)

    def shutdown(self, timeout_s: float = 2.0) -> None:
        _within(self._batches.shutdown, timeout_s)


class _CountedExporter(SpanExporter):
    """Tells its processor what was taken and what failed; an exporter that raises has failed."""

    def __init__(self, exporter: SpanExporter, processor: BoundedProcessor) -> None:
        self._exporter = exporter
        self._processor = processor

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._processor.taken(len(spans))
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self._processor.drop(DropCause.EXPORT_FAILED, len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _within(work: Callable[[], object], timeout_s: float) -> bool:
    """Runs `work` in a thread that nobody has to wait for. False when it took longer."""
    thread = threading.Thread(target=work, name="dayzero-spans", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()
