"""Ready means that a real answer came out of the real path, lately.

- An answered canary or an answered request counts; a process that listens does not.
- While requests are answered no canary is sent; when none were for a period, one is.
- A canary that fails three periods in a row, or never succeeded, means not ready, with the reason in words.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dayzero.errors import DayzeroError
from dayzero.telemetry import CanaryOutcome

log = logging.getLogger(__name__)

STALE_PERIODS = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """When the last answer came, and why the last canary failed; times in seconds of one clock."""

    last_answer_s: float | None = None
    last_failure: str | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str


def judge(evidence: Evidence, period_s: float, now_s: float) -> Readiness:
    """Pure."""
    if evidence.last_answer_s is None:
        return Readiness(ready=False, reason=evidence.last_failure or "no canary was answered yet")
    age_s = now_s - evidence.last_answer_s
    if age_s > STALE_PERIODS * period_s:
        why = evidence.last_failure or "no canary was answered"
        return Readiness(ready=False, reason=f"the last answer was {age_s:.0f} s ago: {why}")
    return Readiness(ready=True, reason="a request was answered lately")


class Canary:
    """Sends canaries when nothing else proves that the path works."""

    def __init__(
        self,
        send: Callable[[], Awaitable[None]],
        *,
        period_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        on_outcome: Callable[[CanaryOutcome], None],
    ) -> None:
        self._send = send
        self._on_outcome = on_outcome
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._evidence = Evidence()

    def answered(self) -> None:
        """A request was answered."""
        self._evidence = Evidence(self._clock(), None)

    def readiness(self) -> Readiness:
        return judge(self._evidence, self._period_s, self._clock())

    async def probe(self) -> bool:
        """One canary; False, with the reason kept, if it was not answered."""
        outcome = CanaryOutcome.FAILED
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send()
        except TimeoutError:
            outcome = CanaryOutcome.TIMED_OUT
            reason = f"a canary was not answered within {self._timeout_s:g} s"
        except DayzeroError as e:
            reason = f"a canary failed: {e.message}"
        except Exception:
            log.exception("a canary failed")
            reason = "a canary failed; the gateway's log has the cause"
        else:
            self.answered()
            self._on_outcome(CanaryOutcome.ANSWERED)
            return True
        self._on_outcome(outcome)
        self._evidence = Evidence(self._evidence.last_answer_s, reason)
        return False

    async def run(self) -> None:
        """Probe whenever a period passed without an answer; sooner while not ready."""
        while True:
            last = self._evidence.last_answer_s
            idle_s = self._clock() - last if last is not None else self._period_s
            if idle_s >= self._period_s and not await self.probe():
                await asyncio.sleep(min(1.0, self._period_s))
                continue
            await asyncio.sleep(max(0.05, self._period_s - idle_s) if last is not None else 0.0)
