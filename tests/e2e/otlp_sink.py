"""A collector of spans: OTLP over HTTP, decoded with OpenTelemetry's own types."""

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.regions import wait_until


@dataclass(frozen=True)
class Collected:
    """One span; ids in hexadecimal, times in Unix seconds."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_s: float
    end_s: float
    attributes: dict[str, Any]


class Sink:
    """Keeps every span that was sent to it."""

    def __init__(self) -> None:
        self.spans: list[Collected] = []
        self._lock = threading.Lock()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                sink.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing to standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, request: ExportTraceServiceRequest) -> None:
        taken = [
            Collected(
                service=_attributes(resource.resource.attributes).get("service.name", ""),
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                start_s=span.start_time_unix_nano / 1e9,
                end_s=span.end_time_unix_nano / 1e9,
                attributes=_attributes(span.attributes),
            )
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.spans += taken

    def all(self) -> list[Collected]:
        with self._lock:
            return list(self.spans)

    def of_request(self, request_id: str, names: set[str], timeout_s: float = 30.0) -> list[Collected]:
        """Every span of a request's trace, once those named are there."""
        return self._trace("dayzero.request_id", request_id, names, timeout_s)

    def of_client(self, client_id: str, names: set[str], timeout_s: float = 30.0) -> list[Collected]:
        """The same, for a request that its client named in x-request-id."""
        return self._trace("dayzero.client_request_id", client_id, names, timeout_s)

    def _trace(self, attribute: str, value: str, names: set[str], timeout_s: float) -> list[Collected]:
        def trace() -> list[Collected]:
            spans = self.all()
            ids = {span.trace_id for span in spans if span.attributes.get(attribute) == value}
            return [span for span in spans if span.trace_id in ids]

        wait_until(
            lambda: names <= {span.name for span in trace()},
            timeout_s,
            lambda: sorted(span.name for span in trace()),
        )
        return trace()


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}
