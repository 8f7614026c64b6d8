"""Hits: how much of the prompts was cached lately, and how right the router was about it. Pure, with injected time.

- The recent past fades out exponentially; totals do not.
- A prediction is compared only where one was made and the engine reported: what is not known is absent, not zero.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

WINDOW_S: Final = 600.0
"""The recent past is about this long: what is as old counts half."""

_LEAST_TOKENS = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answered request: tokens of its prompt, those found cached, those that were predicted to be."""

    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int | None

    @property
    def phantom_tokens(self) -> int:
        """Predicted, but not found."""
        return max(self.predicted_tokens - self.cached_tokens, 0) if self.predicted_tokens is not None else 0

    @property
    def missed_tokens(self) -> int:
        """Found, but not predicted."""
        return max(self.cached_tokens - self.predicted_tokens, 0) if self.predicted_tokens is not None else 0


@dataclass(frozen=True, slots=True)
class Sums:
    """`predictions`: requests that had one. `cached_of_predicted`: cached tokens of those."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    predictions: float = 0.0
    predicted_tokens: float = 0.0
    cached_of_predicted: float = 0.0
    phantom_tokens: float = 0.0
    missed_tokens: float = 0.0

    def scaled(self, by: float) -> "Sums":
        return Sums(
            self.requests * by,
            self.prompt_tokens * by,
            self.cached_tokens * by,
            self.predictions * by,
            self.predicted_tokens * by,
            self.cached_of_predicted * by,
            self.phantom_tokens * by,
            self.missed_tokens * by,
        )

    def plus(self, outcome: Outcome) -> "Sums":
        told = outcome.predicted_tokens is not None
        return Sums(
            self.requests + 1,
            self.prompt_tokens + outcome.prompt_tokens,
            self.cached_tokens + outcome.cached_tokens,
            self.predictions + told,
            self.predicted_tokens + (outcome.predicted_tokens or 0),
            self.cached_of_predicted + (outcome.cached_tokens if told else 0),
            self.phantom_tokens + outcome.phantom_tokens,
            self.missed_tokens + outcome.missed_tokens,
        )


@dataclass(frozen=True, slots=True)
class Hits:
    recent: Sums = Sums()
    total: Sums = Sums()
    at_s: float = 0.0

    def with_outcome(self, outcome: Outcome, now_s: float) -> "Hits":
        faded = self.faded(now_s)
        return Hits(faded.recent.plus(outcome), self.total.plus(outcome), now_s)

    def faded(self, now_s: float) -> "Hits":
        keep = 0.5 ** (max(0.0, now_s - self.at_s) / WINDOW_S)
        return replace(self, recent=self.recent.scaled(keep), at_s=now_s)

    def describe(self, now_s: float) -> dict[str, Any]:
        """For status pages. Rates are shares of tokens: hits of prompts, phantoms of predictions, misses of hits."""
        recent, total = self.faded(now_s).recent, self.total
        line: dict[str, Any] = {"window_s": WINDOW_S}
        if recent.prompt_tokens >= _LEAST_TOKENS:
            line["hit_rate"] = round(recent.cached_tokens / recent.prompt_tokens, 4)
        if recent.predicted_tokens >= _LEAST_TOKENS:
            line["phantom_rate"] = round(recent.phantom_tokens / recent.predicted_tokens, 4)
        if recent.cached_of_predicted >= _LEAST_TOKENS:
            line["missed_rate"] = round(recent.missed_tokens / recent.cached_of_predicted, 4)
        if total.requests:
            line["prompt_tokens_total"] = round(total.prompt_tokens)
            line["cached_tokens_total"] = round(total.cached_tokens)
        if total.predictions:
            line["predicted_cached_tokens_total"] = round(total.predicted_tokens)
            line["phantom_tokens_total"] = round(total.phantom_tokens)
            line["missed_tokens_total"] = round(total.missed_tokens)
        return line
