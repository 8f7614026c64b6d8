"""Serve's own HTTP layer, made ours: headers from outside are replaced before Serve reads them.

Serve trusts some request headers: it echoes a client's request id as its own, and lets a client switch off disconnect
detection, set timeouts or pick replicas. Named in RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH, `middlewares` wraps the
HTTP server of every proxy and every directly reached replica, outside Serve's own request-id middleware.

- The request id is ours; the client's is kept as `x-client-request-id`.
- Every request has a `traceparent`: the client's, or a new root that OTEL_TRACES_SAMPLER sampled or not. Sampling is
  decided here, once; Ray and we follow it.
"""

from typing import Final

from starlette.middleware import Middleware

from dayzero.gateway.http import Receive, Scope, Send
from dayzero.gateway.middleware import App, new_request_id
from dayzero.telemetry import Roots, extract

_DROPPED: Final = frozenset(
    {
        b"x-request-id",
        b"x-client-request-id",
        b"x-request-disconnect-disabled",
        b"x-request-timeout-seconds",
        b"serve-multiplexed-model-id",
        b"serve_multiplexed_model_id",
    }
)
_MAX_CLIENT_ID_BYTES: Final = 128


class Edge:
    """The ASGI middleware."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._roots = Roots()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = replaced(scope["headers"], self._roots)
        await self._app(scope, receive, send)


def replaced(headers: list[tuple[bytes, bytes]], roots: Roots) -> list[tuple[bytes, bytes]]:
    """A request's headers as Serve and the gateway may see them."""
    kept = [(name, value) for name, value in headers if name not in _DROPPED and name.isascii()]
    kept.append((b"x-request-id", new_request_id().encode()))
    if client_id := next((value for name, value in headers if name == b"x-request-id"), b""):
        kept.append((b"x-client-request-id", client_id[:_MAX_CLIENT_ID_BYTES]))
    carrier = {
        name.decode(): value.decode("latin-1")
        for name, value in kept
        if name in (b"traceparent", b"tracestate")
    }
    if extract(carrier) is None:
        kept = [(name, value) for name, value in kept if name not in (b"traceparent", b"tracestate")]
        kept += [(name.encode(), value.encode()) for name, value in roots.new().items()]
    return kept


def middlewares() -> list[Middleware]:
    """What Serve's callback returns."""
    return [Middleware(Edge)]
