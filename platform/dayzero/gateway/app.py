"""The ASGI app: routes over one Gateway.

The endpoints are plain ASGI under Starlette's router: that costs a tenth of FastAPI's dependency solving, lets an endpoint
see its client leave, and leaves every error to the one place that writes them. FastAPI gives the documentation page.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

import msgspec
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.routing import Route, Router

from dayzero.api import openapi
from dayzero.api.errors import MethodNotAllowedError, RouteNotFoundError
from dayzero.api.models import model_list, model_object
from dayzero.gateway.chat import ChatCompletions
from dayzero.gateway.decisions import KEPT_S
from dayzero.gateway.errors import DecisionNotFoundError
from dayzero.gateway.http import JSON_TYPE, Receive, Scope, Send, send_bytes
from dayzero.gateway.middleware import RequestEnvelope
from dayzero.gateway.regions.endpoint import GENERATE, PeerGenerate, PeerLoad
from dayzero.gateway.regions.info import Digests
from dayzero.gateway.service import Gateway

Answer = tuple[int, bytes, tuple[bytes, bytes]]
METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
HTML_TYPE = (b"content-type", b"text/html; charset=utf-8")


def product_version() -> str:
    try:
        return version("dayzero")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0.0.0"


def create_app(
    gateway: Gateway, *, trust_edge: bool = False, digests: Digests | None = None
) -> RequestEnvelope:
    """The whole app, outermost layer included. `trust_edge`: an edge of ours has set the request's id.

    `digests`: what other regions may know of the prefixes that are cached here.
    """

    @asynccontextmanager
    async def lifespan(_: Router) -> AsyncIterator[None]:
        await gateway.start()
        yield
        await gateway.stop()

    document = msgspec.json.encode(openapi.document(product_version()))
    docs = bytes(get_swagger_ui_html(openapi_url="/openapi.json", title="dayzero").body)
    for_peers = PeerLoad(gateway, digests)
    router = Router(
        [
            Route("/v1/chat/completions", _Only("POST", ChatCompletions(gateway))),
            Route("/v1/models", _Get(lambda scope: _models(gateway, scope))),
            Route("/v1/models/{model:path}", _Get(lambda scope: _model(gateway, scope))),
            Route("/livez", _Get(lambda _: (200, b'{"status":"alive"}', JSON_TYPE))),
            Route("/readyz", _Get(lambda _: _readyz(gateway))),
            Route("/metrics", _Get(lambda _: (200, gateway.metrics_text(), METRICS_TYPE))),
            Route("/internal/v1/status", _Get(lambda scope: _status(gateway, scope))),
            Route(GENERATE, _Only("POST", PeerGenerate(gateway))),
            Route("/internal/v1/peer", _Only("GET", for_peers.load)),
            Route("/internal/v1/peer/digest", _Only("GET", for_peers.digest)),
            Route("/internal/v1/decisions/{request_id}", _Get(lambda scope: _decision(gateway, scope))),
            Route("/openapi.json", _Get(lambda _: (200, document, JSON_TYPE))),
            Route("/docs", _Get(lambda _: (200, docs, HTML_TYPE))),
        ],
        redirect_slashes=False,
        default=_no_such_path,
        lifespan=lifespan,
    )
    return RequestEnvelope(router, trust_edge=trust_edge)


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        raise RouteNotFoundError(f"No such path for {scope['method']}; see /docs.")
    await Router().not_found(scope, receive, send)  # a websocket, which Starlette knows how to close


class _Only:
    """An ASGI endpoint for one method."""

    def __init__(self, method: str, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._method = method
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != self._method:
            raise MethodNotAllowedError(f"This path takes {self._method}, not {scope['method']}.")
        await self._app(scope, receive, send)


class _Get:
    """A small answer from the scope alone; it may be waited for."""

    def __init__(self, answer: Callable[[Scope], Answer | Awaitable[Answer]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowedError(f"This path takes GET, not {scope['method']}.")
        answer = self._answer(scope)
        status, body, content_type = answer if isinstance(answer, tuple) else await answer
        await send_bytes(send, status, b"" if scope["method"] == "HEAD" else body, [content_type])


def _models(gateway: Gateway, scope: Scope) -> Answer:
    gateway.authenticate(scope)
    return 200, model_list(gateway.model_objects()), JSON_TYPE


def _model(gateway: Gateway, scope: Scope) -> Answer:
    gateway.authenticate(scope)
    return 200, model_object(gateway.model_object(scope["path_params"]["model"])), JSON_TYPE


def _readyz(gateway: Gateway) -> Answer:
    readiness = gateway.readiness()
    body = msgspec.json.encode(
        {"status": "ready" if readiness.ready else "not ready", "reason": readiness.reason}
    )
    return 200 if readiness.ready else 503, body, JSON_TYPE


def _status(gateway: Gateway, scope: Scope) -> Answer:
    gateway.authenticate_operator(scope)
    return 200, msgspec.json.encode(gateway.status()), JSON_TYPE


async def _decision(gateway: Gateway, scope: Scope) -> Answer:
    gateway.authenticate_operator(scope)
    record = await gateway.decisions.find(scope["path_params"]["request_id"])
    if record is None:
        raise DecisionNotFoundError(
            f"No decision is kept under this id in this region. They are kept for {KEPT_S // 60} minutes after a "
            "request ended, and only of requests that were placed; check the id and ask its region."
        )
    return 200, record, JSON_TYPE
