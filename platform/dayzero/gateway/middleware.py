"""The outermost ASGI layer: a request id for every answer, and errors in OpenAI's shape for every route.

- Ids are ours. Alone, the gateway makes one and answers with it. Behind an edge that made one (`trust_edge`), it takes
  that one, and the edge answers with it.
- An exception that is not one of ours becomes a 500 without details; the log has them under the request's id, and
  never a body or a header.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from dayzero.errors import DayzeroError
from dayzero.gateway.errors import ClientGoneError, InternalError
from dayzero.gateway.http import Receive, Scope, Send, header, send_error

log = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


class RequestEnvelope:
    """Wraps an ASGI app."""

    def __init__(self, app: App, *, trust_edge: bool = False) -> None:
        self._app = app
        self._trust_edge = trust_edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = header(scope, b"x-request-id") if self._trust_edge else None
        tagged = _TaggedSend(send, given or new_request_id(), tag=given is None)
        scope.setdefault("state", {})["request_id"] = tagged.request_id
        try:
            await self._app(scope, receive, tagged)
        except ClientGoneError:
            log.info("request %s: the client left", tagged.request_id)
        except DayzeroError as e:
            if e.status >= 500:
                log.warning("request %s failed: %s (%s)", tagged.request_id, type(e).__name__, e.code)
            await tagged.fail(e)
        except Exception:
            log.exception("request %s failed", tagged.request_id)
            await tagged.fail(InternalError("Something failed on our side."))


class _TaggedSend:
    """`send` that adds the request's id to the headers, and knows whether they are gone."""

    def __init__(self, send: Send, request_id: str, *, tag: bool) -> None:
        self.request_id = request_id
        self._tag = tag
        self._send = send
        self._started = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            if self._tag:
                tag = (b"x-request-id", self.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), tag]}
        await self._send(message)

    async def fail(self, error: DayzeroError) -> None:
        if not self._started:
            await send_error(self, error)
