"""Store: a region's Redis or Valkey, by URL, as one that may be slow, frozen, empty or gone at any time.

- Every call has one deadline over all of it: name lookup, connecting, AUTH, sending and the answer. The client itself
  never retries. What fails raises StoreGoneError and nothing else.
- After a failure no connection is used again: a late answer is never read as another call's (FIELD_REPORTS L2), and
  the name is looked up anew, so that a demoted primary is left (L3).
- Each link has its own connections and breaker: a background task that waits long takes nothing from a quick read.
- The URL may hold a password. It is never logged; `where` is the part that may be. Keys and values are never logged.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from dayzero.router.feed.breaker import Breaker
from dayzero.router.feed.errors import KeyRefusedError, StoreGoneError, StoreUrlError

QUICK_S: Final = 0.05
"""For an answer that a person or a request waits for."""
PATIENT_S: Final = 2.0
"""For a task in the background: a store that adds 200 ms to every call still serves it."""

_EXPECTED: Final = "The store's URL cannot be used. Write redis://host:6379/0, rediss://host:6379/0 or unix:///path/valkey.sock."

_REFUSALS: Final = ("WRONGTYPE", "exhausted the last possible ID", "smaller than the target stream top item")
"""The server tells these apart by their words alone."""

Client = Redis
Command = tuple[Any, ...]
"""A command and its words."""
T = TypeVar("T")


class Link:
    """Connections for one kind of use, with a deadline and a breaker."""

    def __init__(self, url: str, where: str, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.breaker = Breaker()
        self._where = where
        self._client: Redis = Redis.from_url(
            url,
            socket_timeout=deadline_s,
            socket_connect_timeout=deadline_s,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
            # RESP2 without CLIENT SETINFO: a new connection costs no round trip but AUTH.
            protocol=2,
            driver_info=None,
            max_connections=16,
            decode_responses=False,
        )

    async def call(self, work: Callable[[Client], Awaitable[T]], *, extra_s: float = 0.0) -> T:
        """`work`'s answer, within the deadline and `extra_s` (for a read that blocks). Raises StoreGoneError.

        Cancelled, it takes its connection along: redis-py closes one whose answer was not read.
        """
        if not self.breaker.allows(time.monotonic()):
            raise StoreGoneError(f"The store at {self._where} failed before and is left alone for a moment.")
        try:
            async with asyncio.timeout(self.deadline_s + extra_s):
                answer = await work(self._client)
        except asyncio.CancelledError:
            self.breaker.abandoned()
            raise
        except (RedisError, OSError, TimeoutError) as error:
            self.breaker.failed(time.monotonic())
            await self._drop()
            kind = KeyRefusedError if is_refusal(error) else StoreGoneError
            raise kind(
                f"The store at {self._where} did not do what was asked: {type(error).__name__}."
            ) from None
        self.breaker.succeeded()
        return answer

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._client.aclose()

    async def _drop(self) -> None:
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(min(self.deadline_s, 0.5)):
                await self._client.connection_pool.disconnect(inuse_connections=False)


class Store:
    """Makes links to the store that `url` names. Opens nothing itself. Raises StoreUrlError."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.where = _where(url)
        self.link(PATIENT_S)  # a URL that the client refuses is refused here

    def link(self, deadline_s: float) -> Link:
        try:
            return Link(self._url, self.where, deadline_s)
        except (ValueError, TypeError, RedisError):
            raise StoreUrlError(_EXPECTED) from None


def _where(url: str) -> str:
    """The URL without user, password and options."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    place = parts.hostname or ""
    if parts.scheme == "unix" and parts.path:
        return f"unix://{parts.path}"
    if parts.scheme in {"redis", "rediss"} and place:
        return f"{parts.scheme}://{place}:{port or 6379}{parts.path}"
    raise StoreUrlError(_EXPECTED)


async def send(client: Client, commands: list[Command]) -> list[Any]:
    """Sends all in one round trip and returns each answer; an error among them is an element, not raised."""
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    return await pipe.execute(raise_on_error=False)


def is_refusal(answer: Any) -> bool:
    """Whether the server refused because of what lies under the key, not because of its own state or our rights.

    Only what deleting the key mends: another type, and a stream whose last number somebody has used.
    """
    return isinstance(answer, ResponseError) and any(words in str(answer) for words in _REFUSALS)


def but_refusals(answers: list[Any]) -> list[Any]:
    """None for each refusal among `answers`; raises the first other error; only within `call`'s work."""
    return all_well([None if is_refusal(answer) else answer for answer in answers])


def all_well(answers: list[Any]) -> list[Any]:
    """Raises the first error among `answers`; only within `call`'s work."""
    for answer in answers:
        if isinstance(answer, RedisError):
            raise answer
    return answers


async def ask(
    link: Link, commands: list[Command], *, extra_s: float = 0.0, refusable: bool = False
) -> list[Any]:
    """The answers to `commands`, sent in one round trip. Raises StoreGoneError where one of them is an error.

    `refusable`: a refusal (see `is_refusal`) is no error, but None.
    """
    checked = but_refusals if refusable else all_well

    async def work(client: Client) -> list[Any]:
        return checked(await send(client, commands))

    return await link.call(work, extra_s=extra_s)
