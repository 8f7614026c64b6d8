"""Trail: what was decided for a request and what came of it, attempt by attempt.

- `generation` writes it while the request runs; it only keeps what is at hand, so that it costs nothing there.
- It is read once the request is settled: by the span, the metrics and the decision log.
- It holds no prompt, no ids of tokens and nothing of an error but its code.
"""

from dataclasses import dataclass, field

from dayzero.engine.types import TokenDelta
from dayzero.errors import DayzeroError
from dayzero.gateway.retry import Verdict
from dayzero.router.load import Score
from dayzero.router.place import Placement


@dataclass(slots=True)
class Attempted:
    """One attempt. `first_token_s` counts from its dispatch; `cached_tokens` is what the engine reported.

    `placement` is None where nobody could take the request; `error` says so then.
    """

    number: int
    placement: Placement | None = None
    replica: str | None = None
    first_token_s: float | None = None
    cached_tokens: int | None = None
    error: DayzeroError | None = None
    verdict: Verdict | None = None

    def note(self, delta: TokenDelta, passed_s: float) -> None:
        if delta.usage is not None:
            self.cached_tokens = delta.usage.cached_tokens
        if delta.token_ids and self.first_token_s is None:
            self.first_token_s = passed_s

    @property
    def predicted_s(self) -> float | None:
        """Seconds to the first token where the request went; where it should go, before anybody took it."""
        score = self._taken()
        if score is not None:
            return score.total_s
        return self.placement.predicted_s if self.placement is not None else None

    @property
    def predicted_cached_tokens(self) -> int | None:
        """None where nobody knew."""
        score = self._taken()
        return score.reusable_tokens if score is not None else None

    def _taken(self) -> Score | None:
        """The score of the replica that took it, which Serve may have had to choose further down the order."""
        if self.placement is None or not self.placement.scores:
            return None
        for score in self.placement.scores:
            if score.replica == self.replica:
                return score
        return self.placement.scores[0]


@dataclass(slots=True)
class Trail:
    """`request_id`: the one that its client was given, in whichever region. `prompt_tokens`: the engine's."""

    request_id: str
    prompt_tokens: int
    attempts: list[Attempted] = field(default_factory=list)

    def begin(self, number: int) -> Attempted:
        attempt = Attempted(number)
        self.attempts.append(attempt)
        return attempt

    @property
    def last(self) -> Attempted | None:
        return self.attempts[-1] if self.attempts else None
