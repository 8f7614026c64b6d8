"""The one owner of a request, from admission to settlement.

- Made at admission, closed exactly once on any exit: answer, error, deadline, disconnect, cancellation.
- Closing settles everything that the request held: its place among the in-flight, its span, and whatever was left with
  `on_close`. A replica's reservation and the engine's work are released by iterators that close inside it.
- Closing is synchronous, so that cancellation cannot strike in the middle.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

from dayzero.engine.types import TokenDelta
from dayzero.errors import DayzeroError
from dayzero.gateway.errors import ClientGoneError, DeadlineError
from dayzero.gateway.trail import Trail
from dayzero.telemetry import Attribute, Span, SpanEvent
from dayzero.telemetry.tracing import OFF

log = logging.getLogger(__name__)


class Outcome(StrEnum):
    OK = "ok"
    CLIENT_GONE = "client_gone"
    DEADLINE = "deadline"
    REFUSED = "refused"
    """The request itself was at fault (a 4xx)."""
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a request came to. Times in seconds; `first_token_s` None if none was made."""

    request_id: str
    route: str
    model: str
    stream: bool
    outcome: Outcome
    status: int
    error_code: str | None
    finish: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    attempts: int
    first_token_s: float | None
    total_s: float
    truncated: bool
    """A stream that ended with an error event."""
    stopped: bool
    """A stop string ended the engine's work early."""
    tenant: str = ""
    trail: Trail | None = None
    """Its placements; None where it was refused before any."""
    degraded: tuple[str, ...] = ()
    """The oddities of its answer that were mended, by name."""


Observer = Callable[[Settlement], None]


class InFlight:
    """The requests that this gateway holds now."""

    def __init__(self) -> None:
        self._lifetimes: dict[str, Lifetime] = {}
        self.admitted_total = 0

    def __len__(self) -> int:
        return len(self._lifetimes)

    def add(self, lifetime: "Lifetime") -> None:
        self._lifetimes[lifetime.request_id] = lifetime
        self.admitted_total += 1

    def remove(self, lifetime: "Lifetime") -> None:
        self._lifetimes.pop(lifetime.request_id, None)


@dataclass(slots=True)
class Lifetime:
    """Use as a context manager: leaving it closes it, with the outcome that its exception tells."""

    request_id: str
    route: str
    in_flight: InFlight
    observers: Sequence[Observer]
    clock: Callable[[], float]
    span: Span = OFF
    model: str = ""
    stream: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    degraded: tuple[str, ...] = ()
    attempts: int = 0
    finish: str | None = None
    first_token_s: float | None = None
    stopped: bool = False
    shown: bool = False
    """Something of the answer was sent to the client: from there on nothing may be replayed."""
    tenant: str = ""
    trail: Trail | None = None
    failure: DayzeroError | None = None
    """An error that was sent inside a stream, where nothing is raised."""
    _started_s: float = field(init=False, default=0.0)
    _last_token_s: float = field(init=False, default=0.0)
    _releases: list[Callable[[], None]] = field(init=False, default_factory=list)
    _closed: bool = field(init=False, default=False)

    def __enter__(self) -> Self:
        self._started_s = self.clock()
        self.in_flight.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def on_close(self, release: Callable[[], None]) -> None:
        """Something else to give back when this request is settled."""
        self._releases.append(release)

    def count(self, delta: TokenDelta) -> float | None:
        """Account for a delta's tokens, once each. Seconds since the tokens before; None for the first."""
        if delta.usage is not None:
            self.cached_tokens = delta.usage.cached_tokens
        if not delta.token_ids:
            return None
        now_s, before_s = self.clock(), self._last_token_s
        self._last_token_s = now_s
        self.completion_tokens += len(delta.token_ids)
        if self.first_token_s is None:
            self.first_token_s = now_s - self._started_s
            self.span.event(SpanEvent.FIRST_TOKEN)
            return None
        return now_s - before_s

    def restart(self) -> None:
        """The answer begins again: nobody has seen or is billed what came so far."""
        self.completion_tokens, self.cached_tokens, self.first_token_s = 0, 0, None
        self.reasoning_tokens = 0

    def close(self, error: BaseException | None = None) -> None:
        """Settle; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.in_flight.remove(self)
        outcome, status, code = _outcome(error or self.failure)
        settlement = Settlement(
            request_id=self.request_id,
            route=self.route,
            model=self.model,
            stream=self.stream,
            outcome=outcome,
            status=status,
            error_code=code,
            finish=self.finish,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            attempts=self.attempts,
            first_token_s=self.first_token_s,
            total_s=self.clock() - self._started_s,
            truncated=self.failure is not None,
            stopped=self.stopped,
            tenant=self.tenant,
            trail=self.trail,
            degraded=self.degraded,
        )
        for release in self._releases:
            release()
        settle_span(self.span, settlement)
        for observer in self.observers:
            try:
                observer(settlement)
            except Exception:
                # The answer is out: a fault in counting must not become the request's, nor keep it from the others.
                log.exception("request %s was settled, and an observer failed", self.request_id)


def settle_span(span: Span, settlement: Settlement) -> None:
    """A request's figures on its span, which ends."""
    span.set(Attribute.STATUS, settlement.status)
    span.set(Attribute.MODEL, settlement.model or None)
    span.set(Attribute.STREAM, settlement.stream)
    span.set(Attribute.FINISH, settlement.finish)
    span.set(Attribute.ERROR_TYPE, settlement.error_code)
    span.set(Attribute.PROMPT_TOKENS, settlement.prompt_tokens or None)
    span.set(Attribute.COMPLETION_TOKENS, settlement.completion_tokens or None)
    span.set(Attribute.CACHED_TOKENS, settlement.cached_tokens)
    span.set(Attribute.DEGRADED, ",".join(settlement.degraded) or None)
    span.set(Attribute.FIRST_TOKEN_S, settlement.first_token_s)
    if settlement.trail is not None and settlement.trail.last is not None:
        last = settlement.trail.last
        span.set(Attribute.REPLICA, last.replica)
        span.set(Attribute.PREDICTED_S, last.predicted_s)
        span.set(Attribute.PREDICTED_CACHED_TOKENS, last.predicted_cached_tokens)
    if settlement.outcome is Outcome.CLIENT_GONE:
        span.event(SpanEvent.CLIENT_LEFT)
    span.end()


def _outcome(error: BaseException | None) -> tuple[Outcome, int, str | None]:
    match error:
        case None:
            return Outcome.OK, 200, None
        case ClientGoneError() | asyncio.CancelledError() | GeneratorExit():
            return Outcome.CLIENT_GONE, ClientGoneError.status, ClientGoneError.default_code
        case DeadlineError():
            return Outcome.DEADLINE, error.status, error.code
        case DayzeroError():
            outcome = Outcome.REFUSED if error.status < 500 else Outcome.ERROR
            return outcome, error.status, error.code
        case _:
            return Outcome.ERROR, 500, "internal_error"
