"""Fewer, larger frames when many streams run at once.

A frame costs a fixed amount of CPU on its way through Ray (docs/adr/0003), a token in it almost nothing. So a replica
spends a budget of frames a second: alone, a stream gets a frame a token; among many, each waits a little longer and
gets more tokens at once. The first delta never waits.

- Nothing is lost, reordered or held longer than `interval_s`.
- Closing the iterator closes the engine's, which aborts its work.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from dayzero.engine.frames import merge
from dayzero.engine.types import TokenDelta

FRAMES_PER_S = 1500.0
"""What one replica may send: about a third of a core at the 215 µs a frame measured for this path."""


def interval_s(streams: int, frames_per_s: float = FRAMES_PER_S) -> float:
    """How long a stream waits between frames, with `streams` of them running. Pure."""
    return max(0, streams - 1) / frames_per_s


async def coalesce(
    deltas: AsyncGenerator[TokenDelta, None], interval: Callable[[], float]
) -> AsyncGenerator[TokenDelta, None]:
    """Deltas, merged so that at least `interval()` seconds lie between two of them."""
    buffer = _Buffer()
    filling = asyncio.create_task(buffer.fill(deltas))
    try:
        while ready := await buffer.take(interval):
            yield ready
        filling.result()  # raises what the engine raised
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        await deltas.aclose()


class _Buffer:
    """Deltas that came and were not sent yet."""

    def __init__(self) -> None:
        self._held: list[TokenDelta] = []
        self._ended = False
        self._changed = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._taken_s = float("-inf")

    async def fill(self, deltas: AsyncGenerator[TokenDelta, None]) -> None:
        try:
            async for delta in deltas:
                self._held.append(delta)
                self._changed.set()
        finally:
            self._ended = True
            self._changed.set()

    async def take(self, interval: Callable[[], float]) -> TokenDelta | None:
        """What is held, once something is and the interval since the last take passed; None at the end."""
        await self._changed.wait()
        wait_s = self._taken_s + interval() - self._clock()
        if wait_s > 0 and not self._ended:
            await asyncio.sleep(wait_s)
        if not self._ended:
            self._changed.clear()
        if not self._held:
            return None
        self._taken_s = self._clock()
        held, self._held = self._held, []
        return merge(held)
