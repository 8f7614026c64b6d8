"""SimulatedEngine: a replica's engine without a model: real scheduling and prefix cache, made-up tokens, timed steps.

- The block manager and the scheduler are those of `dayzero.engine`; a step's time is the performance model's, times
  `time_scale`. Tokens are a pure function of the request.
- One task is the engine; everything runs in the caller's event loop. Between two of its awaits no state is half
  changed, so requests, aborts and stats need no lock.
- The engine's task beats at least twice a second; a watchdog that misses five beats in a row declares it dead.
  Both wait in the same loop, so a loop that was held up makes nobody dead.
- Grammars that the voice does not obey, LoRA and KV transfer are refused. Of media only the placeholders count, which
  are in the prompt, and their digests, which tell prompts apart. `priority` is ignored (first come, first served).
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from dayzero.engine.block_manager import BlockManager
from dayzero.engine.errors import (
    EngineDeadError,
    EngineDrainingError,
    EngineError,
    EngineOverloadedError,
    EngineStartError,
)
from dayzero.engine.kv_events import KVEventBatch, KVLedger, LastCopies
from dayzero.engine.protocol import CacheGroup, EngineInfo, EngineStats, Health
from dayzero.engine.simulated_admission import cache_salt, check
from dayzero.engine.simulated_output import SimulatedOutput
from dayzero.engine.simulated_profile import SimulatedProfile
from dayzero.engine.simulated_scheduler import ScheduledRequest, Scheduler, Step
from dayzero.engine.simulated_streams import DeltaStream, KVBroadcast
from dayzero.engine.types import EngineRequest, EngineTimes, Finish, TokenDelta, Usage
from dayzero.engine.voice import Voice
from dayzero.errors import InvalidRequestError

_BEAT_S = 0.5
_MISSED_BEATS = 5
_CATCH_UP_S = 0.02
_VERSION = "1"


@dataclass(slots=True, eq=False, kw_only=True)
class _Job(ScheduledRequest):
    """A request that this engine has taken, until it ends. Times are of the monotonic clock."""

    request: EngineRequest
    output: SimulatedOutput
    stream: DeltaStream
    arrived_s: float
    admitted_s: float | None = None
    first_token_s: float | None = None

    @property
    def to_prefill_tokens(self) -> int:
        """What is left of its prompt. The step that runs counts as done."""
        if self.cached_tokens is None:
            return self.request.expected_uncached_tokens
        return max(self.sequence.tokens - self.sequence.computed_tokens, 0)


class SimulatedEngine:
    """See the module's docstring. `voice`: what it says. `max_waiting`: how long its queue may grow.

    `freeze` and `kill` are for tests: the one stops all progress without ending anything, the other ends it.
    """

    def __init__(
        self,
        profile: SimulatedProfile,
        voice: Voice,
        *,
        time_scale: float = 1.0,
        max_waiting: int = 1024,
    ) -> None:
        if time_scale < 0:
            raise ValueError(f"time_scale is a factor on every step's time, 0 or more, not {time_scale}")
        self._profile = profile
        self._voice = voice
        self._time_scale = time_scale
        self._max_waiting = max_waiting
        self._manager = BlockManager(layout=profile.cache)
        self._scheduler = Scheduler(self._manager, profile.limits)
        self._jobs: dict[str, _Job] = {}
        self._copies = LastCopies()
        self._ledger = KVLedger()
        self._broadcast = KVBroadcast()
        self._info: EngineInfo | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._dead: str | None = None
        self._draining = False
        self._beats = 0
        self._due_s = 0.0
        self._work = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = self._requests = 0
        self._last_token_s: float | None = None

    # Life

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("the engine has not started: await start() first")
        return self._info

    async def start(self) -> EngineInfo:
        profile, cache = self._profile, self._profile.cache
        if self._info is not None:
            raise EngineStartError("an engine starts once; make a new one")
        needed = cache.blocks_for_one(profile.limits.max_model_tokens)
        if needed > cache.blocks - 1:
            raise EngineStartError(
                f"a cache of {cache.blocks} blocks cannot hold one request of {profile.limits.max_model_tokens} "
                f"tokens: give it {needed + 1} blocks or lower max_model_tokens"
            )
        self._info = EngineInfo(
            model=profile.model,
            incarnation=uuid.uuid4().hex,
            max_model_tokens=profile.limits.max_model_tokens,
            match_unit_tokens=cache.unit_tokens,
            cache_groups=tuple(
                CacheGroup(i, kind, cache.block_tokens) for i, kind in enumerate(cache.groups)
            ),
            cache_blocks=cache.blocks,
            engine="sim",
            engine_version=_VERSION,
        )
        self._due_s = time.monotonic()
        self._tasks = [
            asyncio.create_task(self._run(), name=f"sim-engine-{self._info.incarnation}"),
            asyncio.create_task(self._watch(), name=f"sim-watchdog-{self._info.incarnation}"),
        ]
        self._tasks[0].add_done_callback(self._ended)
        return self._info

    async def drain(self, deadline_s: float) -> None:
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()

    async def stop(self) -> None:
        self._draining = True
        if self._dead is None:
            self._dead = "the engine was stopped"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for job in list(self._jobs.values()):
            self._end(job, Finish.ABORT)
        self._broadcast.close()

    def freeze(self) -> None:
        """Test hook: no progress from now on, as a stopped process makes none."""
        self._thawed.clear()

    def kill(self) -> None:
        """Test hook: gone at once, as a killed process is."""
        self._die("the engine was killed")

    # Requests

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        job = self._take(request)
        try:
            while True:
                delta = await job.stream.read()
                yield delta
                if delta.finish is not None:
                    return
        finally:
            if job.stream.is_open:
                self._end(job, Finish.ABORT)

    async def abort(self, request_id: str) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self._end(job, Finish.ABORT)

    def _take(self, request: EngineRequest) -> _Job:
        """Into the queue, or the error that says why not."""
        if self._info is None:
            raise EngineError("the engine has not started: await start() first")
        if self._dead is not None:
            raise EngineDeadError(f"{self._dead}; send the request to another replica")
        if self._draining:
            raise EngineDrainingError("this replica takes no new requests; send it to another")
        self._refuse_invalid(request)
        if len(self._scheduler.waiting) >= self._max_waiting:
            raise EngineOverloadedError(
                f"{self._max_waiting} requests wait here already; send it to another replica", retry_after_s=1
            )
        output = SimulatedOutput(self._voice, request, self._info.max_model_tokens - request.prompt_tokens)
        job = _Job(
            request_id=request.request_id,
            sequence=self._manager.sequence(
                request.prompt_ids, salt=cache_salt(request), request_id=request.request_id
            ),
            request=request,
            output=output,
            stream=DeltaStream(),
            arrived_s=time.monotonic(),
        )
        self._jobs[job.request_id] = job
        self._idle.clear()
        if request.deadline_s is not None and request.deadline_s <= time.time():
            self._end(job, Finish.ABORT)
            return job
        self._requests += 1
        self._scheduler.add(job)
        self._work.set()
        return job

    def _refuse_invalid(self, request: EngineRequest) -> None:
        check(request, room_tokens=self.info.max_model_tokens, grammars=self._voice.grammars)
        if request.request_id in self._jobs:
            raise InvalidRequestError.of("request_id", "a request of this id is running; ids must be unique")

    # State

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            running_prompt_tokens=sum(
                job.to_prefill_tokens for job in self._jobs.values() if job.first_token_s is None
            ),
            kv_usage=self._manager.usage,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            generated_tokens_total=self._generated_tokens,
            requests_total=self._requests,
            resident_blocks=self._ledger.counts(),
            last_token_s=self._last_token_s,
        )

    async def health(self) -> Health:
        if self._info is None:
            return Health(ok=False, reason="the engine has not started")
        if self._dead is not None:
            return Health(ok=False, reason=self._dead)
        return Health(ok=True, reason="")

    def kv_events(self) -> AsyncIterator[KVEventBatch]:
        return self._broadcast.reader()

    # The engine's task

    async def _run(self) -> None:
        while True:
            if not self._scheduler.has_work:
                await self._rest()
                continue
            self._expire()
            step = self._scheduler.schedule()
            self._note_admissions(step)
            await self._pass_time(self._profile.step.seconds(step.load) * self._time_scale)
            self._deliver(step)
            self._publish()

    async def _rest(self) -> None:
        """Wait for work, beating."""
        self._publish()
        self._work.clear()
        while not self._work.is_set():
            await self._beat()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_S):
                    await self._work.wait()
        self._due_s = time.monotonic()

    async def _pass_time(self, step_s: float) -> None:
        """Let a step's time pass, beating. A sleep that came a little late shortens the next ones."""
        now_s = time.monotonic()
        self._due_s = max(self._due_s, now_s - _CATCH_UP_S) + step_s
        await self._beat()
        if self._due_s <= now_s:
            await asyncio.sleep(0)
        while (left_s := self._due_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, _BEAT_S))
            await self._beat()

    async def _beat(self) -> None:
        if not self._thawed.is_set():
            await self._thawed.wait()
        self._beats += 1

    def _expire(self) -> None:
        now_s = time.time()
        late = [
            job
            for job in self._jobs.values()
            if job.request.deadline_s is not None and job.request.deadline_s <= now_s
        ]
        for job in late:
            self._end(job, Finish.ABORT)

    def _note_admissions(self, step: Step) -> None:
        for job, _ in step.work:
            assert isinstance(job, _Job)
            if job.admitted_s is None:
                job.admitted_s = time.monotonic()
                self._prompt_tokens += job.sequence.prompt_tokens
                self._cached_tokens += job.cached_tokens or 0

    def _deliver(self, step: Step) -> None:
        """Give every request that the step brought to its end of known tokens one more."""
        now_s = time.monotonic()
        for job, _ in step.work:
            assert isinstance(job, _Job)
            if not job.stream.is_open or job.is_prefilling:
                continue
            if job.first_token_s is None:
                job.first_token_s = now_s
                job.stream.begin(Usage(job.sequence.prompt_tokens, 1, job.cached_tokens or 0))
            output = job.output
            token_id = output.next()
            job.sequence.chain.append(token_id)
            wanted = job.request.sampling.logprobs is not None
            job.stream.write(token_id, output.logprob(token_id) if wanted else None)
            self._generated_tokens += 1
            if output.finish is not None:
                self._end(job, output.finish)
        if step.work:
            self._last_token_s = time.time()

    def _end(self, job: _Job, finish: Finish) -> None:
        """The one way a request leaves the engine well, or aborted."""
        self._leave(job)
        usage = Usage(job.sequence.prompt_tokens, job.output.count, job.cached_tokens or 0)
        job.stream.end(finish, usage, _times(job))

    def _leave(self, job: _Job) -> None:
        del self._jobs[job.request_id]
        self._scheduler.remove(job)
        if not self._jobs:
            self._idle.set()

    def _publish(self) -> None:
        events = self._copies.pass_on(self._manager.take_events())
        if events:
            self._ledger.apply(events)
            self._broadcast.publish(events, time.time())

    # Death

    async def _watch(self) -> None:
        seen, missed = self._beats, 0
        while self._dead is None:
            await asyncio.sleep(_BEAT_S)
            missed = missed + 1 if self._beats == seen else 0
            seen = self._beats
            if missed >= _MISSED_BEATS:
                self._die(f"the engine made no progress for {_MISSED_BEATS * _BEAT_S:g} s")

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._die(f"the engine failed: {task.exception()!r}")

    def _die(self, reason: str) -> None:
        if self._dead is not None:
            return
        self._dead = reason
        if self._tasks:
            self._tasks[0].cancel()
        for job in list(self._jobs.values()):
            self._leave(job)
            job.stream.fail(EngineDeadError(f"{reason}; send the request to another replica"))


def _times(job: _Job) -> EngineTimes:
    def since_arrival(at_s: float | None) -> float | None:
        return None if at_s is None else at_s - job.arrived_s

    return EngineTimes(
        since_arrival(job.admitted_s), since_arrival(job.first_token_s), time.monotonic() - job.arrived_s
    )
