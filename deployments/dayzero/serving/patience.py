"""Waiting for a stream's next item, unless whoever should send it is lost.

A timer looks while an item is waited for; it costs nothing per item.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import TypeVar

_T = TypeVar("_T")

LOOK_EVERY_S = 1.0


class LostError(Exception):
    """Raised from `patient` when `lost` said so; never seen outside the dispatcher."""


async def patient(
    items: AsyncIterable[_T], lost: Callable[[], bool], every_s: float = LOOK_EVERY_S
) -> AsyncGenerator[_T, None]:
    """The items; raises LostError within `every_s` seconds of `lost()` turning true while one is waited for."""
    loop = asyncio.get_running_loop()
    iterator = aiter(items)
    waiting: asyncio.Task[object] | None = None
    timer: asyncio.TimerHandle | None = None
    gave_up = False

    def look() -> None:
        nonlocal timer, gave_up
        if waiting is not None and lost():
            gave_up = True
            waiting.cancel()
        else:
            timer = loop.call_later(every_s, look)

    timer = loop.call_later(every_s, look)
    try:
        while True:
            waiting = asyncio.current_task()
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if gave_up and waiting is not None and waiting.uncancel() == 0:
                    raise LostError from None
                raise
            finally:
                waiting = None
            yield item
    finally:
        if timer is not None:
            timer.cancel()
