"""ScriptedEngine: an engine that says what a test tells it to, for tests of what stands in front of an engine.

- A script is a function of the request that gives steps: a TokenDelta is delivered, a number waits that many
  seconds, an exception is raised, `HANG` waits until the request is aborted or closed.
- What it adds: usage and times on the delta that finishes, aborts, drain, counts. What it records: every request,
  every abort asked for, every iterator closed before its end. `events.publish` sends KV events to its readers.
- Of the conformance kit it keeps G1 (ids), G2, G3, G4 (limit and stop ids), G5, G6, G7, G12 and G13 with the script
  `repeat`. It has no prefix cache (G8 to G10), no logprobs (G1), no `min_tokens` (G4) and no process that could
  freeze or die (G11); `fail` makes it unhealthy at once.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from dayzero.engine.errors import (
    ContextLengthError,
    EngineDeadError,
    EngineDrainingError,
    EngineError,
)
from dayzero.engine.kv_events import GroupKind, KVEventBatch
from dayzero.engine.protocol import CacheGroup, EngineInfo, EngineStats, Health
from dayzero.engine.simulated_streams import KVBroadcast
from dayzero.engine.types import EngineRequest, EngineTimes, Finish, TokenDelta, Usage


class _Hang(Enum):
    HANG = "hang"


HANG: Final = _Hang.HANG
"""A step that never ends by itself."""

ScriptStep = TokenDelta | float | Exception | _Hang
Script = Callable[[EngineRequest], Iterable[ScriptStep]]


def say(ids: Sequence[int], *, every_s: float = 0.0, finish: Finish = Finish.STOP) -> Script:
    """Deliver the ids one by one, then finish; as many as the request asks for."""

    def script(request: EngineRequest) -> Iterable[ScriptStep]:
        said = ids[: request.sampling.max_tokens]
        last = finish if len(said) == len(ids) else Finish.LENGTH
        for i, token_id in enumerate(said):
            yield every_s
            yield TokenDelta(token_ids=(token_id,), finish=last if i == len(said) - 1 else None)

    return script


def repeat(ids: Sequence[int], *, every_s: float = 0.0) -> Script:
    """Deliver the ids over and over, until `max_tokens` or a stop id."""

    def script(request: EngineRequest) -> Iterable[ScriptStep]:
        sampling = request.sampling
        for i in range(sampling.max_tokens):
            token_id = ids[i % len(ids)]
            finish = Finish.LENGTH if i == sampling.max_tokens - 1 else None
            if token_id in sampling.stop_token_ids:
                finish = Finish.STOP
            yield every_s
            yield TokenDelta(token_ids=(token_id,), finish=finish)
            if finish is not None:
                return

    return script


class ScriptedEngine:
    """See the module's docstring. `script` may be replaced between requests."""

    def __init__(
        self, script: Script | None = None, *, model: str = "scripted", max_model_tokens: int = 8192
    ) -> None:
        self.script: Script = script if script is not None else repeat((11, 12, 13, 14))
        self.requests: list[EngineRequest] = []
        self.aborts: list[str] = []
        self.closed: list[str] = []
        self.events = KVBroadcast()
        self._info = EngineInfo(
            model=model,
            incarnation="scripted-1",
            max_model_tokens=max_model_tokens,
            match_unit_tokens=16,
            cache_groups=(CacheGroup(0, GroupKind.ATTENTION, 16),),
            cache_blocks=0,
            engine="scripted",
            engine_version="1",
        )
        self._ends: dict[str, asyncio.Event] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._dead: str | None = None
        self._draining = False
        self._stopped = False
        self._prompt_tokens = self._generated_tokens = 0
        self._last_token_s: float | None = None

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> EngineInfo:
        return self._info

    def fail(self, reason: str = "a test failed this engine") -> None:
        """Unhealthy from now on; new requests and the next steps of running ones raise EngineDeadError."""
        self._dead = reason
        for end in self._ends.values():
            end.set()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        self.requests.append(request)
        self._refuse(request)
        arrived_s, count, ended = time.monotonic(), 0, False
        end = self._ends[request.request_id] = asyncio.Event()
        self._idle.clear()
        if request.deadline_s is not None and request.deadline_s <= time.time():
            end.set()
        else:
            self._prompt_tokens += request.prompt_tokens
        try:
            for step in self.script(request):
                if end.is_set() or not await self._perform(step, end):
                    break
                if isinstance(step, TokenDelta):
                    count += len(step.token_ids)
                    delta = self._told(step, request, count, arrived_s)
                    ended = delta.finish is not None
                    yield delta
                    if ended:
                        return
            if self._dead is not None:
                raise EngineDeadError(f"{self._dead}; send the request to another replica")
            ended = True
            finish = Finish.ABORT if end.is_set() else Finish.STOP
            yield _last((), finish, request, count, arrived_s)
        except (GeneratorExit, asyncio.CancelledError):
            if not ended:
                self.closed.append(request.request_id)
            raise
        finally:
            del self._ends[request.request_id]
            if not self._ends:
                self._idle.set()

    def _told(self, step: TokenDelta, request: EngineRequest, count: int, arrived_s: float) -> TokenDelta:
        """The script's delta with what an engine adds: usage on the first and the last, the context's end."""
        self._generated_tokens += len(step.token_ids)
        self._last_token_s = time.time()
        finish = step.finish
        if finish is None and request.prompt_tokens + count >= self._info.max_model_tokens:
            finish = Finish.LENGTH
        if finish is not None:
            return _last(step.token_ids, finish, request, count, arrived_s)
        if count == len(step.token_ids):
            return _first(step, request)
        return step

    @staticmethod
    async def _perform(step: ScriptStep, end: asyncio.Event) -> bool:
        """Do what a step says; False when the request ended meanwhile."""
        if isinstance(step, Exception):
            raise step
        if isinstance(step, TokenDelta):
            return True
        if step is HANG:
            await end.wait()
        elif step > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await end.wait()
        else:
            await asyncio.sleep(0)
        return not end.is_set()

    def _refuse(self, request: EngineRequest) -> None:
        if self._dead is not None:
            raise EngineDeadError(f"{self._dead}; send the request to another replica")
        if self._stopped:
            raise EngineError("the engine was stopped")
        if self._draining:
            raise EngineDrainingError("this replica takes no new requests; send it to another")
        if request.prompt_tokens >= self._info.max_model_tokens:
            raise ContextLengthError(
                f"the prompt has {request.prompt_tokens} tokens and the context {self._info.max_model_tokens}",
                param="prompt_ids",
            )

    async def abort(self, request_id: str) -> None:
        self.aborts.append(request_id)
        end = self._ends.get(request_id)
        if end is not None:
            end.set()

    def kv_events(self) -> AsyncIterator[KVEventBatch]:
        return self.events.reader()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._ends),
            waiting=0,
            running_prompt_tokens=0,
            kv_usage=0.0,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=0,
            generated_tokens_total=self._generated_tokens,
            requests_total=len(self.requests),
            resident_blocks={},
            last_token_s=self._last_token_s,
        )

    async def health(self) -> Health:
        return Health(ok=self._dead is None, reason=self._dead or "")

    async def drain(self, deadline_s: float) -> None:
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()

    async def stop(self) -> None:
        self._stopped = True
        self.events.close()
        for end in self._ends.values():
            end.set()


def _first(step: TokenDelta, request: EngineRequest) -> TokenDelta:
    return msgspec.structs.replace(step, usage=Usage(request.prompt_tokens, len(step.token_ids)))


def _last(
    ids: tuple[int, ...], finish: Finish, request: EngineRequest, count: int, arrived_s: float
) -> TokenDelta:
    usage = Usage(request.prompt_tokens, count)
    return TokenDelta(
        token_ids=ids, finish=finish, usage=usage, times=EngineTimes(total_s=time.monotonic() - arrived_s)
    )
