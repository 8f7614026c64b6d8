"""VLLMEngine: the engine seam over vLLM 0.32's AsyncLLM, token ids in and out.

- EngineCore runs in a process of its own; `start` builds it off the event loop and returns when it serves.
- One object per request in the tally, from `generate`'s first step until its iterator ends on any path; closing or
  cancelling the iterator aborts vLLM's work.
- Death is final and has one cause: the watchdog's reason, which every request, running and new, is ended with.
- Sockets live in a folder of this engine alone. `stop`, a failed `start`, and the death of this very process leave
  neither that folder nor a process behind (see `vllm_guard`).
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dayzero.engine.errors import (
    EngineDeadError,
    EngineDrainingError,
    EngineError,
    EngineOverloadedError,
    EngineStartError,
)
from dayzero.engine.kv_events import KVEventBatch
from dayzero.engine.protocol import EngineInfo, EngineStats, Health
from dayzero.engine.types import EngineRequest, GrammarKind, TokenDelta
from dayzero.engine.watchdog import Verdict
from dayzero.errors import InvalidRequestError
from dayzero.serving.engines.vllm_config import VLLMConfig, check_config
from dayzero.serving.engines.vllm_core import (
    build_in_thread,
    core_pids,
    events_endpoint,
    replay_endpoint,
    take_down,
)
from dayzero.serving.engines.vllm_guard import Guard
from dayzero.serving.engines.vllm_info import describe, model_limits
from dayzero.serving.engines.vllm_kv_events import KVEventReader
from dayzero.serving.engines.vllm_requests import (
    ModelLimits,
    check_request,
    never_started,
    refused,
    to_delta,
    to_prompt,
    to_sampling_params,
)
from dayzero.serving.engines.vllm_stats import LiveRequest, Tally
from dayzero.serving.engines.vllm_watch import EngineProcesses, Watchdog

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

_LONGEST_REQUEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class _Started:
    """What exists exactly while the engine does."""

    llm: "AsyncLLM"
    info: EngineInfo
    limits: ModelLimits
    processes: EngineProcesses
    watchdog: Watchdog
    events: KVEventReader


class VLLMEngine:
    """See `dayzero.engine.protocol` for the guarantees."""

    def __init__(self, config: VLLMConfig) -> None:
        self._config = config
        self._tally = Tally()
        self._started: _Started | None = None
        self._sockets: Path | None = None
        self._guard: Guard | None = None
        self._dead: str | None = None
        self._draining = False
        self._stopped = False
        self._stopping: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def info(self) -> EngineInfo:
        return self._running.info

    @property
    def process_ids(self) -> tuple[int, ...]:
        """EngineCore and its workers. Raises EngineError before `start` returned."""
        return self._running.processes.pids

    @property
    def _running(self) -> _Started:
        if self._started is None:
            raise EngineError("the engine is not running: it was stopped, or never started")
        return self._started

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> EngineInfo:
        if self._started is not None or self._stopped:
            raise EngineStartError("an engine starts once: make a new one")
        check_config(self._config)
        self._config.run_dir.mkdir(parents=True, exist_ok=True)
        self._sockets = Path(tempfile.mkdtemp(prefix="vllm-", dir=self._config.run_dir))
        self._guard = Guard(self._sockets)
        building = asyncio.create_task(build_in_thread(self._config, self._sockets, self._tally))
        try:
            llm = await asyncio.shield(building)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, but without its processes it fails soon.
            await self._clean_up()
            with suppress(Exception):
                await take_down(await building, self._config.stop_grace_s)
            raise
        except EngineStartError:
            await self._clean_up()
            raise
        try:
            self._started = await self._open(llm)
        except BaseException:
            await take_down(llm, self._config.stop_grace_s)
            await self._clean_up()
            raise
        return self._started.info

    async def _open(self, llm: "AsyncLLM") -> _Started:
        assert self._sockets is not None
        # Asked for now, so that `generate` reaches vLLM's scheduler without a pause in between (see `_outputs`).
        await llm.get_supported_tasks()
        info = await describe(llm, self._config, incarnation=uuid4().hex)
        processes = EngineProcesses(core_pids(llm))
        watchdog = Watchdog(
            llm,
            processes,
            outstanding=lambda: len(self._tally.live),
            progress=lambda: self._tally.progress,
            on_dead=self._die,
        )
        events = KVEventReader(
            events_endpoint(self._sockets),
            replay_endpoint(self._sockets),
            {group.group: group.kind for group in info.cache_groups},
        )
        watchdog.start()
        events.start()
        limits = model_limits(llm, self._config)
        return _Started(llm, info, limits, processes, watchdog, events)

    def _die(self, reason: str) -> None:
        """The watchdog's verdict: end every request with it, and the processes.

        vLLM's own task goes first, or it would log the end that we bring about as another failure.
        """
        from vllm.v1.engine.exceptions import EngineDeadError as CoreDeadError  # noqa: PLC0415

        self._dead = reason
        started = self._running
        if started.llm.output_handler is not None:
            started.llm.output_handler.cancel()
        started.llm.output_processor.propagate_error(CoreDeadError())
        started.processes.kill()

    async def drain(self, deadline_s: float) -> None:
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()

    async def stop(self) -> None:
        self._stopped = True
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="vllm-stop")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        started = self._started
        if started is not None:
            await started.watchdog.close()
            if self._dead is None:
                with suppress(Exception):  # a core that dies now is what we want
                    await started.llm.abort(list(self._tally.live))
            await started.events.close()
            await take_down(started.llm, self._config.stop_grace_s)
            await started.processes.until_gone()
            self._started = None
        await self._clean_up()

    async def _clean_up(self) -> None:
        """The guard ends what is left of the engine's processes and removes its folder."""
        if self._guard is not None:
            await asyncio.to_thread(self._guard.close)

    # -- requests ----------------------------------------------------------------------------------

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        started = self._admit(request)
        if request.deadline_s is not None and request.deadline_s <= time.time():
            yield never_started(request)
            return
        began_s = time.monotonic()
        sampling = await self._sampling(request, started.limits)
        live = self._tally.begin(request.request_id, request.prompt_tokens, request.expected_uncached_tokens)
        self._idle.clear()
        deadline = self._abort_at_deadline(request)
        try:
            async with aclosing(self._outputs(started.llm, request, sampling)) as outputs:
                async for output in outputs:
                    yield self._delta(output, request, live, began_s)
        finally:
            if deadline is not None:
                deadline.cancel()
            self._tally.end(request.request_id)
            if not self._tally.live:
                self._idle.set()

    def _admit(self, request: EngineRequest) -> _Started:
        if self._dead is not None:
            raise EngineDeadError(f"the engine is dead: {self._dead}")
        if self._stopped or self._draining:
            raise EngineDrainingError("the engine takes no new work: send the request to another replica")
        started = self._running
        check_request(request, started.limits)
        if request.request_id in self._tally.live:
            raise InvalidRequestError.of("request_id", "a request of this id is running already")
        return started

    async def _sampling(self, request: EngineRequest, limits: ModelLimits) -> "SamplingParams":
        """A turn's grammar is made in a thread: the first one imports for seconds, a large one takes half a second."""
        if request.grammar is None or request.grammar.kind is not GrammarKind.KIMI_K3:
            return to_sampling_params(request, limits)
        made = await asyncio.to_thread(to_sampling_params, request, limits)
        self._admit(request)  # again: time has passed
        return made

    async def _outputs(
        self, llm: "AsyncLLM", request: EngineRequest, sampling: "SamplingParams"
    ) -> AsyncGenerator["RequestOutput"]:
        """What vLLM puts out, with its errors as ours.

        The prompt goes in rendered form, so vLLM registers the request before its first pause: an `abort` that
        follows always finds it.
        """
        from vllm.exceptions import GracefulHTTPError, VLLMClientError  # noqa: PLC0415
        from vllm.v1.engine.exceptions import EngineDeadError as CoreDeadError  # noqa: PLC0415

        traced = self._config.otlp_endpoint is not None and request.trace
        outputs = llm.generate(
            to_prompt(request),
            sampling,
            request.request_id,
            trace_headers=request.trace if traced else None,
            priority=request.priority,
            session_id=request.request_id,  # comes back in the KV events of what this request stores
        )
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        except CoreDeadError as e:
            raise EngineDeadError(f"the engine is dead: {self._cause_of_death()}") from e
        except GracefulHTTPError as e:
            raise EngineOverloadedError(
                "the engine's queue is full: send the request to another replica"
            ) from e
        except VLLMClientError as e:
            raise refused(e) from e
        except EngineError:
            raise
        except Exception as e:
            if isinstance(e.__cause__, ValueError):  # vLLM wraps some refusals of a grammar
                raise refused(e.__cause__) from e
            raise EngineError(f"the engine failed on this request: {type(e.__cause__ or e).__name__}") from e

    def _cause_of_death(self) -> str:
        """Look now: vLLM may find a dead core before the watchdog's next look."""
        if self._dead is None and not self._stopped:
            self._running.watchdog.look()
        return self._dead or "it was stopped"

    def _delta(
        self, output: "RequestOutput", request: EngineRequest, live: LiveRequest, began_s: float
    ) -> TokenDelta:
        tokens = len(output.outputs[0].token_ids)
        self._tally.delivered(live, tokens, output.num_cached_tokens or 0)
        return to_delta(
            output,
            request,
            completion_tokens=live.completion_tokens,
            total_s=time.monotonic() - began_s,
        )

    def _abort_at_deadline(self, request: EngineRequest) -> asyncio.TimerHandle | None:
        if request.deadline_s is None or request.deadline_s - time.time() > _LONGEST_REQUEST_S:
            return None
        loop = asyncio.get_running_loop()
        aborts: set[asyncio.Task[None]] = set()

        def abort() -> None:
            task = loop.create_task(self.abort(request.request_id))
            aborts.add(task)
            task.add_done_callback(aborts.discard)

        return loop.call_later(request.deadline_s - time.time(), abort)

    async def abort(self, request_id: str) -> None:
        if request_id not in self._tally.live or self._dead is not None or self._started is None:
            return
        try:
            await self._started.llm.abort(request_id)
        except Exception as e:  # noqa: BLE001 - a core that dies now has ended the request too
            logger.debug("an abort met a dying engine: %r", e)

    # -- what it says of itself --------------------------------------------------------------------

    def kv_events(self) -> AsyncIterator[KVEventBatch]:
        return self._running.events.subscribe()

    def stats(self) -> EngineStats:
        resident = self._started.events.ledger.counts() if self._started is not None else {}
        return self._tally.stats(resident)

    async def health(self) -> Health:
        if self._stopped:
            return Health(ok=False, reason="stopped")
        if self._started is None:
            return Health(ok=False, reason="not started")
        state = self._started.watchdog.look()
        return Health(ok=state.verdict is not Verdict.DEAD, reason=state.reason)
