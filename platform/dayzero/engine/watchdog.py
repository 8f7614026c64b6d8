"""The watchdog's decision: whether an engine that runs in other processes is alive, from what is seen of them.

- Health is progress: tokens, steps, or an answer to a cheap question. Progress since the last look is always OK.
- Silence alone proves nothing: a long prefill answers no question while its step runs. It is told from a frozen
  engine by CPU time: a live process uses some every second (its timers tick), a frozen one none, to the nanosecond.
- A process that is gone, or an engine that calls itself dead, is dead at once. DEAD is final.
- A gap in our own looking (a blocked event loop, a suspended machine) proves nothing either: every clock restarts.
- Pure: time comes in as `now`, in seconds of one monotonic clock.
"""

from dataclasses import dataclass, replace
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    SUSPECT = "suspect"
    """Something is odd, not long enough to say; the engine keeps its work."""
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process of the engine. `cpu_s`: seconds of CPU of all its threads since it started."""

    pid: int
    name: str
    alive: bool
    stopped: bool = False
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one look saw.

    `progress`: any number that changes when tokens, steps or answers came.
    `asked`: a question or a request is unanswered; without one, silence means nothing.
    `reported`: the engine's own word that it is dead.
    """

    processes: tuple[ProcessSample, ...]
    progress: int
    asked: bool
    outstanding: int = 0
    reported: str | None = None

    @property
    def cpu_s(self) -> float:
        return sum(process.cpu_s for process in self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each odd thing may last until DEAD.

    `stopped_s`: in the stopped state. `frozen_s`: silent and without any CPU time. `hung_s`: silent and almost
    idle, as in a deadlock. `stuck_s`: silent and busy; far beyond any prefill step. `gap_s`: longest time between
    two looks that still count as looking.
    """

    stopped_s: float = 2.0
    frozen_s: float = 3.0
    hung_s: float = 60.0
    stuck_s: float = 600.0
    gap_s: float = 2.0
    idle_share: float = 0.02
    """Share of one core below which a silent engine counts as idle."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """What is remembered between looks: the verdict, and since when each odd thing has been so."""

    verdict: Verdict
    reason: str
    looked_s: float
    progress: int
    cpu_s: float
    silent_since_s: float
    silent_cpu_s: float
    still_since_s: float
    stopped_since_s: float | None = None


def first_look(observation: Observation, now: float) -> WatchState:
    """The state to begin with; nothing is odd yet."""
    return WatchState(
        verdict=Verdict.OK,
        reason="started",
        looked_s=now,
        progress=observation.progress,
        cpu_s=observation.cpu_s,
        silent_since_s=now,
        silent_cpu_s=observation.cpu_s,
        still_since_s=now,
    )


def decide(
    observation: Observation, state: WatchState, now: float, limits: Limits = DEFAULT_LIMITS
) -> WatchState:
    """The next state; its `verdict` and `reason` are the answer."""
    if state.verdict is Verdict.DEAD:
        return state
    seen = _remember(observation, state, now, limits)
    verdict, reason = _judge(observation, seen, now, limits)
    return replace(seen, verdict=verdict, reason=reason)


def _remember(observation: Observation, state: WatchState, now: float, limits: Limits) -> WatchState:
    blind = now - state.looked_s > limits.gap_s
    heard = blind or not observation.asked or observation.progress != state.progress
    moved = blind or observation.cpu_s != state.cpu_s
    stopped = any(process.alive and process.stopped for process in observation.processes)
    if not stopped:
        stopped_since_s = None
    elif blind or state.stopped_since_s is None:
        stopped_since_s = now
    else:
        stopped_since_s = state.stopped_since_s
    return replace(
        state,
        looked_s=now,
        progress=observation.progress,
        cpu_s=observation.cpu_s,
        silent_since_s=now if heard else state.silent_since_s,
        silent_cpu_s=observation.cpu_s if heard else state.silent_cpu_s,
        still_since_s=now if moved else state.still_since_s,
        stopped_since_s=stopped_since_s,
    )


def _judge(observation: Observation, seen: WatchState, now: float, limits: Limits) -> tuple[Verdict, str]:
    gone = [process for process in observation.processes if not process.alive]
    if gone:
        return Verdict.DEAD, f"{_names(gone)} is gone"
    if observation.reported is not None:
        return Verdict.DEAD, observation.reported
    if seen.stopped_since_s is not None:
        stopped_s = now - seen.stopped_since_s
        names = _names([process for process in observation.processes if process.stopped])
        verdict = Verdict.DEAD if stopped_s >= limits.stopped_s else Verdict.SUSPECT
        return verdict, f"{names} has been stopped for {stopped_s:.1f} s"
    return _judge_silence(observation, seen, now, limits)


def _judge_silence(
    observation: Observation, seen: WatchState, now: float, limits: Limits
) -> tuple[Verdict, str]:
    silent_s = now - seen.silent_since_s
    still_s = min(silent_s, now - seen.still_since_s)
    if still_s >= limits.frozen_s:
        return Verdict.DEAD, f"no answer and no CPU time for {still_s:.1f} s: frozen"
    used_s = observation.cpu_s - seen.silent_cpu_s
    idle = used_s < limits.idle_share * silent_s
    if silent_s >= limits.hung_s and idle:
        return Verdict.DEAD, f"no answer for {silent_s:.0f} s while almost idle: hung"
    if silent_s >= limits.stuck_s:
        return Verdict.DEAD, f"no answer for {silent_s:.0f} s while busy: stuck"
    if still_s >= limits.frozen_s / 2:
        return Verdict.SUSPECT, f"no answer and no CPU time for {still_s:.1f} s"
    if silent_s >= limits.frozen_s:
        return (
            Verdict.OK,
            f"a step has been running for {silent_s:.1f} s ({observation.outstanding} requests)",
        )
    return Verdict.OK, "making progress" if observation.outstanding else "idle and answering"


def _names(processes: list[ProcessSample]) -> str:
    return ", ".join(f"{process.name} (pid {process.pid})" for process in processes)
