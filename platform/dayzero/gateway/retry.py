"""May this request be tried on another replica? Pure, with the budget's clock injected.

- Only before the first token: after it the client has seen output that another replica would not repeat.
- Only for errors that say so (`retryable`), and at most `max_attempts` times.
- Only within the budget: retries stay a share of requests, so that a broken fleet is not made worse by them
  (FIELD_REPORTS M3), above a floor that lets a quiet fleet retry.
"""

from dataclasses import dataclass
from typing import Final

from dayzero.errors import DayzeroError

WINDOW_S: Final = 10.0
"""The budget looks back about this long."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`budget_share`: retries per request over the window; `budget_floor_per_s`: retries always allowed."""

    max_attempts: int = 3
    budget_share: float = 0.2
    budget_floor_per_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What happened to the latest attempt. `number` counts from 1."""

    number: int
    tokens_delivered: int
    error: DayzeroError


@dataclass(frozen=True, slots=True)
class Budget:
    """Requests and retries of the recent past, fading out exponentially over WINDOW_S."""

    requests: float = 0.0
    retries: float = 0.0
    at_s: float = 0.0

    def faded(self, now_s: float) -> "Budget":
        keep = 0.5 ** (max(0.0, now_s - self.at_s) / WINDOW_S)
        return Budget(self.requests * keep, self.retries * keep, now_s)

    def with_request(self, now_s: float) -> "Budget":
        faded = self.faded(now_s)
        return Budget(faded.requests + 1, faded.retries, now_s)

    def with_retry(self, now_s: float) -> "Budget":
        faded = self.faded(now_s)
        return Budget(faded.requests, faded.retries + 1, now_s)


@dataclass(frozen=True, slots=True)
class Verdict:
    retry: bool
    reason: str


def decide(attempt: Attempt, policy: RetryPolicy, budget: Budget, now_s: float) -> Verdict:
    if attempt.tokens_delivered:
        return Verdict(retry=False, reason="tokens were already delivered")
    if not attempt.error.retryable:
        return Verdict(retry=False, reason="another replica would fail in the same way")
    if attempt.number >= policy.max_attempts:
        return Verdict(retry=False, reason=f"{attempt.number} attempts were made")
    recent = budget.faded(now_s)
    allowed = policy.budget_share * recent.requests + policy.budget_floor_per_s * WINDOW_S
    if recent.retries + 1 > allowed:
        return Verdict(retry=False, reason="the retry budget is spent")
    return Verdict(retry=True, reason=type(attempt.error).__name__)
