"""ASGI at the edge: bounded bodies, answers, server-sent events, clients that leave.

- A body is counted while it is read and refused at the limit; a declared length over it is refused unread; it has to
  arrive in its time.
- A stream's headers wait for its first frame, so that an early error is a plain HTTP error; after `hold_s` they are
  sent with keep-alive comments, so that no idle timeout on the way cuts a long prefill.
- A client that leaves cancels the request's task once, as ClientGoneError.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Self

import msgspec

from dayzero.api.errors import BodyTooLargeError
from dayzero.errors import DayzeroError
from dayzero.gateway.errors import BodyTimeoutError, ClientGoneError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
_KEEP_ALIVE = b": keep-alive\n\n"


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Every header of this (lower-case) name."""
    return [value for key, value in scope["headers"] if key == name]


def trace_headers(scope: Scope) -> dict[str, str]:
    """The W3C trace context of a request's headers."""
    names = (b"traceparent", b"tracestate")
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in names}


async def read_body(scope: Scope, receive: Receive, limit_bytes: int, timeout_s: float) -> bytes:
    """Raises BodyTooLargeError, BodyTimeoutError or ClientGoneError."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_chunks(receive, limit_bytes)
    except TimeoutError:
        raise BodyTimeoutError(f"The body did not arrive within {timeout_s:g} seconds.") from None


async def _read_chunks(receive: Receive, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("The client left before its request was read.")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(limit_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"The body is larger than the {limit_bytes:,} bytes that this server takes.", param="body"
    )


async def send_bytes(send: Send, status: int, body: bytes, headers: RawHeaders) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: DayzeroError) -> None:
    """An error in OpenAI's shape."""
    headers = [JSON_TYPE]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, round(error.retry_after_s))).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send_bytes(send, error.status, msgspec.json.encode(error.openai()), headers)


class Watch:
    """Whether the client is still there. A server says that it left once its answer is complete, too."""

    def __init__(self) -> None:
        self.over = False

    def answered(self) -> None:
        """The last of the answer is about to be sent: who leaves from here on misses nothing."""
        self.over = True


@contextlib.asynccontextmanager
async def cancelled_when_client_leaves(receive: Receive) -> AsyncIterator[Watch]:
    """Cancels the body of the `async with` when the client leaves, and raises ClientGoneError from it.

    The request's body must have been read whole: the next message is then the disconnect.
    """
    client = Watch()
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not in a task")
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if not client.over:
            gone = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield client
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGoneError("The client left.") from None
        raise
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


class EventStream:
    """A server-sent-event response: `send` frames, then `close`."""

    def __init__(self, send: Send, headers: RawHeaders, *, hold_s: float, keep_alive_s: float) -> None:
        self._send = send
        self._headers = headers
        self._hold_s = hold_s
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._last_sent_s = self._loop.time()
        self._ticker: asyncio.Task[None] | None = None
        self.started = False

    async def __aenter__(self) -> Self:
        self._ticker = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    async def send(self, frame: bytes) -> None:
        if not self.started:
            await self._start()
        self._last_sent_s = self._loop.time()
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def _keep_alive(self) -> None:
        await asyncio.sleep(self._hold_s)
        while True:
            idle_s = self._loop.time() - self._last_sent_s
            if not self.started or idle_s >= self._keep_alive_s:
                await self.send(_KEEP_ALIVE)
                idle_s = 0.0
            await asyncio.sleep(self._keep_alive_s - idle_s)
