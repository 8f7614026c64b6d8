"""Frames to a peer: deltas at once, several that are ready as one, heartbeats while there are none.

- The first delta never waits; those that come while a frame is being sent go together in the next one.
- What is made stays bounded by the answer's own limit; a peer that does not read for `stuck_s` is gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from dayzero.engine.frames import encode_delta, merge
from dayzero.engine.types import TokenDelta
from dayzero.gateway.errors import ClientGoneError
from dayzero.gateway.http import Send
from dayzero.gateway.regions.wire import Kind, Writer


class Outbox:
    """One stream's writer. `start` sends the head; a delta with `finish`, or an error, ends it.

    `before_last` is called when the last bytes are about to be sent.
    """

    def __init__(
        self,
        send: Send,
        headers: list[tuple[bytes, bytes]],
        *,
        stuck_s: float,
        before_last: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_last = before_last
        self._send = send
        self._headers = headers
        self._stuck_s = stuck_s
        self._writer = Writer()
        self._placed = ""

    async def start(self, replica: str) -> None:
        """The request is taken; `replica` is expected to serve it."""
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self.placed(replica)

    async def placed(self, replica: str | None) -> None:
        """Who serves it, told when it is somebody else."""
        if replica and replica != self._placed:
            self._placed = replica
            await self._put(self._writer.frame(Kind.PLACED, replica.encode()))

    async def delta(self, delta: TokenDelta) -> None:
        """With `finish` it is the last."""
        frame = self._writer.frame(Kind.DELTA, encode_delta(delta))
        if delta.finish is None:
            await self._put(frame)
        else:
            await self._put(frame + self._writer.frame(Kind.END), more=False)

    async def heartbeat(self) -> None:
        await self._put(self._writer.frame(Kind.HEARTBEAT))

    async def error(self, frame: bytes) -> None:
        """`frame`: an error as `engine.frames` writes it. It is the last."""
        await self._put(self._writer.frame(Kind.ERROR, frame), more=False)

    async def _put(self, data: bytes, *, more: bool = True) -> None:
        if not more:
            self._before_last()
        try:
            async with asyncio.timeout(self._stuck_s):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise ClientGoneError("The peer does not read its stream.") from None


async def ready(
    deltas: AsyncGenerator[TokenDelta, None], beat_s: float
) -> AsyncGenerator[TokenDelta | None, None]:
    """What is ready, merged; None after `beat_s` without anything. Closing it closes `deltas`."""
    held: list[TokenDelta] = []
    changed = asyncio.Event()

    async def fill() -> None:
        try:
            async for delta in deltas:
                held.append(delta)
                changed.set()
        finally:
            changed.set()

    filling = asyncio.create_task(fill())
    loop = asyncio.get_running_loop()
    try:
        await asyncio.sleep(0)  # a task that is cancelled before its first step would never begin the deltas
        while held or not filling.done():
            if not held:
                timer = loop.call_later(beat_s, changed.set)
                await changed.wait()
                timer.cancel()
            changed.clear()
            if held:
                taken = held.copy()
                held.clear()
                yield merge(taken)
            elif not filling.done():
                yield None
        filling.result()  # raises what the deltas raised
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        await deltas.aclose()
