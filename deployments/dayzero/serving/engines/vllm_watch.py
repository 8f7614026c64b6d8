"""The watchdog's eyes and hands for vLLM: samples its processes, asks EngineCore a cheap question, and acts on DEAD.

- vLLM's own `check_health` sees a core that ended, never one that is frozen (SIGSTOP, a paused container).
- One question is out at a time; EngineCore answers between steps, so no answer during a long step is normal.
- On DEAD the root cause is logged once and the processes are killed by id: a frozen core that woke up later would
  work for nobody.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dayzero.engine.watchdog import (
    DEFAULT_LIMITS,
    Limits,
    Observation,
    ProcessSample,
    Verdict,
    WatchState,
    decide,
    first_look,
)

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_ASK_EVERY_S = 1.0
_STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
_GONE = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})


class EngineProcesses:
    """vLLM's processes: EngineCore and what it started. psutil pins each by its start time, so a reused id is safe."""

    def __init__(self, core_pids: Sequence[int]) -> None:
        self._processes: list[tuple[str, psutil.Process]] = []
        for pid in core_pids:
            core = psutil.Process(pid)
            self._processes.append(("EngineCore", core))
            self._processes += [(f"worker {child.name()}", child) for child in core.children(recursive=True)]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for _, process in self._processes)

    def sample(self) -> tuple[ProcessSample, ...]:
        return tuple(_sample(name, process) for name, process in self._processes)

    async def until_gone(self, patience_s: float = 10.0) -> None:
        """Kill and wait. A process that was killed takes a while to go on a crowded machine."""
        end_s = time.monotonic() + patience_s
        while any(process.alive for process in self.sample()) and time.monotonic() < end_s:
            self.kill()
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL. Processes that are gone already are no error. They are vLLM's children: vLLM reaps them."""
        for _, process in self._processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _sample(name: str, process: psutil.Process) -> ProcessSample:
    try:
        status = process.status()
        alive = process.is_running() and status not in _GONE
        cpu_s = _cpu_s(process) if alive else 0.0
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return ProcessSample(pid=process.pid, name=name, alive=False)
    return ProcessSample(pid=process.pid, name=name, alive=alive, stopped=status in _STOPPED, cpu_s=cpu_s)


def _cpu_s(process: psutil.Process) -> float:
    """CPU seconds of all threads, to the nanosecond.

    psutil's figure moves in ticks of 10 ms, too coarse for an idle engine; kernels without scheduler statistics
    fall back to it.
    """
    total_ns = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            total_ns += int((thread / "schedstat").read_bytes().split()[0])
    if total_ns:
        return total_ns / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


class Watchdog:
    """`outstanding` and `progress` are read at each look; `on_dead` is called once with the reason."""

    def __init__(
        self,
        llm: "AsyncLLM",
        processes: EngineProcesses,
        *,
        outstanding: Callable[[], int],
        progress: Callable[[], int],
        on_dead: Callable[[str], None],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._llm = llm
        self._processes = processes
        self._outstanding = outstanding
        self._progress = progress
        self._on_dead = on_dead
        self._limits = limits
        self._answers = 0
        self._asked_s = time.monotonic()
        self._question: asyncio.Task[str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._state = first_look(self._observe(), time.monotonic())

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="vllm-watchdog")

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._question) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> WatchState:
        """Look once and act; what `health` calls, so that its answer is never older than its question."""
        before = self._state.verdict
        self._state = decide(self._observe(), self._state, time.monotonic(), self._limits)
        if self._state.verdict is not before:
            self._report(before)
        return self._state

    def _report(self, before: Verdict) -> None:
        if self._state.verdict is Verdict.DEAD:
            logger.error("the engine is dead: %s", self._state.reason)
            self._on_dead(self._state.reason)
        else:
            logger.info("the engine is %s, was %s: %s", self._state.verdict, before, self._state.reason)

    def _observe(self) -> Observation:
        outstanding = self._outstanding()
        return Observation(
            processes=self._processes.sample(),
            progress=self._progress() + self._answers,
            asked=outstanding > 0 or self._question is not None,
            outstanding=outstanding,
            reported="vLLM reports that EngineCore ended" if self._llm.errored else None,
        )

    async def _run(self) -> None:
        while self._state.verdict is not Verdict.DEAD:
            try:
                self.look()
            except Exception:
                logger.exception("the watchdog could not look at the engine's processes")
            if self._question is None and time.monotonic() - self._asked_s >= _ASK_EVERY_S:
                self._ask()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _ask(self) -> None:
        """EngineCore answers this from a variable: any cheap call would do."""
        self._asked_s = time.monotonic()
        self._question = asyncio.create_task(self._llm.get_weight_version(), name="vllm-question")
        self._question.add_done_callback(self._answered)

    def _answered(self, question: asyncio.Task[str]) -> None:
        self._question = None
        if not question.cancelled() and question.exception() is None:
            self._answers += 1
