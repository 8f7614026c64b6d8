"""One replica: an engine behind a Serve deployment.

- It knows tokens only. What it sends back are frames (`dayzero.engine.frames`): deltas, or an error as data.
- A dead engine takes its replica down: the guard sees it within seconds, lets running calls fail with the engine's
  own error, and ends the process, which Serve replaces.
- What its engine caches is told to the region's gateways by its `CacheFeed`.
- Drain: Serve stops placing, waits for running calls, then `__del__` stops the engine.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from ray import serve

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.frames import encode_delta, encode_error
from dayzero.engine.protocol import Engine, Health
from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.errors import DayzeroError
from dayzero.gateway.errors import InternalError
from dayzero.serving.cache_feed import CacheFeed
from dayzero.serving.coalesce import coalesce, interval_s
from dayzero.serving.engines.factory import EngineSpec, make_engine
from dayzero.serving.frontends import vocabulary_digest
from dayzero.serving.ticket import Ticket
from dayzero.telemetry import Attribute, Span, SpanName, extract, inject, setup

log = logging.getLogger(__name__)

GUARD_PERIOD_S = 0.5
LAST_WORDS_S = 0.3
"""How long running calls get to carry the engine's error to their callers before the process ends."""
EXIT_ENGINE_DEAD = 70
"""EX_SOFTWARE of sysexits.h: seen in Ray's log of why an actor ended."""


class Replica:
    """Bound into the Serve application by `dayzero.serving.app.build`."""

    async def __init__(self, spec: EngineSpec) -> None:  # type: ignore[misc]  # Serve awaits it
        self._name = serve.get_replica_context().replica_id.unique_id
        self._health = Health(ok=True, reason="starting")
        self._vocabulary = vocabulary_digest(spec.model.frontend, spec.folder)
        self._engine: Engine = make_engine(spec)
        self._streams = 0
        self._tracing = setup("dayzero-replica")
        self._started_s = time.time()
        await self._engine.start()
        self._feed = CacheFeed(
            self._engine, replica=self._name, region=spec.pool.region, store_url=spec.store_url
        )
        await self._feed.start()
        self._guard_task = asyncio.create_task(self._guard())

    async def generate(self, ticket: Ticket, payload: bytes) -> AsyncGenerator[bytes, None]:  # noqa: ARG002
        """One request's frames. `ticket` is the router's; it is first so that the router finds it."""
        self._streams += 1
        try:
            request = EngineRequest.decode(payload)
            with self._tracing.start(SpanName.GENERATE, extract(request.trace)) as span:
                self._describe(span, request)
                carried = msgspec.structs.replace(request, trace=inject(span))
                self._feed.admit(carried)
                deltas = coalesce(self._engine.generate(carried), lambda: interval_s(self._streams))
                async with aclosing(deltas):
                    async for delta in deltas:
                        yield encode_delta(delta)
                        _note(span, delta)
        except DayzeroError as e:
            yield encode_error(e)
        except Exception:
            log.exception("the engine failed in a way it should not")
            yield encode_error(InternalError("The engine failed in a way it should not."))
        finally:
            self._streams -= 1

    def _describe(self, span: Span, request: EngineRequest) -> None:
        info = self._engine.info
        span.set(Attribute.REQUEST_ID, request.request_id)
        span.set(Attribute.REPLICA, self._name)
        span.set(Attribute.ENGINE, info.engine)
        span.set(Attribute.INCARNATION, info.incarnation)
        span.set(Attribute.PROMPT_TOKENS, request.prompt_tokens)

    def record_routing_stats(self) -> dict[str, Any]:
        """What Serve carries to every router and status page: `dayzero.serving.board` keeps it there."""
        return {
            "replica": self._name,
            "health": msgspec.to_builtins(self._health),
            "info": msgspec.to_builtins(self._engine.info),
            "stats": msgspec.to_builtins(self._engine.stats()),
            "feed": self._feed.describe(),
            "vocabulary": self._vocabulary,
            "started_s": self._started_s,
            "reported_s": time.time(),
        }

    async def check_health(self) -> None:
        """Serve's own check: raises EngineDeadError while the engine makes no progress."""
        if not self._health.ok:
            raise EngineDeadError(self._health.reason)

    async def _guard(self) -> None:
        while True:
            self._health = await self._engine.health()
            if not self._health.ok:
                log.error("the engine of %s is dead: %s", self._name, self._health.reason)
                await asyncio.sleep(LAST_WORDS_S)
                with suppress(Exception):  # one that cannot even be stopped ends with the process
                    await asyncio.wait_for(self._engine.stop(), timeout=5.0)
                os._exit(EXIT_ENGINE_DEAD)
            await asyncio.sleep(GUARD_PERIOD_S)

    async def __del__(self) -> None:
        self._guard_task.cancel()
        await self._feed.stop()
        await self._engine.stop()
        self._tracing.shutdown()


def _note(span: Span, delta: TokenDelta) -> None:
    if delta.finish is None or delta.usage is None:
        return
    span.set(Attribute.FINISH, delta.finish)
    span.set(Attribute.CACHED_TOKENS, delta.usage.cached_tokens)
    span.set(Attribute.COMPLETION_TOKENS, delta.usage.completion_tokens)
    if delta.times is not None:
        span.set(Attribute.QUEUE_S, delta.times.queue_s)
        span.set(Attribute.FIRST_TOKEN_S, delta.times.first_token_s)
