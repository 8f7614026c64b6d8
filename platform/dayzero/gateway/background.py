"""Work beside the requests that goes on as long as its gateway does.

- A task that ends with an exception would end unseen: nobody awaits it. It is logged, and begun again after a pause.
- Cancelling is how it ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

PAUSE_S = 1.0


async def kept_up(name: str, work: Callable[[], Awaitable[None]], *, pause_s: float = PAUSE_S) -> None:
    """Runs `work` until it returns or is cancelled. `name`: for the log."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed; it begins again in %g s", name, pause_s)
            await asyncio.sleep(pause_s)
        else:
            return
