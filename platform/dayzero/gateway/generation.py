"""Generation with retries: placements, attempts, and the one decision whether to try again.

- An attempt's span is a child of the request's, so that a retry stands beside what it retries.
- Every attempt leaves what was decided and what came of it on the request's trail, whatever ends it.
- What counts as delivered is what the client was shown (`Lifetime.shown`): an answer that nobody has seen any of may
  begin again elsewhere, and RESTART says so to who decodes it.
- Nothing of an engine or a peer is taken beyond what was asked, nor an end that is none.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import msgspec

from dayzero.engine.errors import EngineDeadError, EngineProtocolError
from dayzero.engine.types import EngineRequest, Finish, TokenDelta
from dayzero.errors import DayzeroError
from dayzero.gateway import retry
from dayzero.gateway.dispatch import Dispatch, Dispatcher
from dayzero.gateway.lifetime import Lifetime
from dayzero.gateway.retry import Attempt, Budget, RetryPolicy, Verdict
from dayzero.gateway.trail import Attempted, Trail
from dayzero.router.place import Placement
from dayzero.telemetry import Attribute, Span, SpanName, inject

log = logging.getLogger(__name__)

RESTART: Final = TokenDelta()
"""In place of a delta: forget what came so far, the answer begins again. Compared by identity."""
_BROKEN_OFF: Final = frozenset({Finish.ABORT, Finish.ERROR})


class Generator:
    """One per gateway: it holds the retry budget, which all requests share."""

    def __init__(
        self, policy: RetryPolicy, *, clock: Callable[[], float], on_retry: Callable[[DayzeroError], None]
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._on_retry = on_retry
        self._budget = Budget(at_s=clock())

    async def generate(
        self, dispatcher: Dispatcher, request: EngineRequest, lifetime: Lifetime
    ) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of one answer. Raises the engine's errors, and NoReplicaError when nobody may take the request."""
        self._budget = self._budget.with_request(self._clock())
        trail = lifetime.trail = Trail(request.request_id, request.prompt_tokens)
        excluded: frozenset[str] = frozenset()
        while True:
            lifetime.attempts += 1
            attempted = trail.begin(lifetime.attempts)
            placement = placed(dispatcher, request, excluded, lifetime, attempted)
            tokens = 0
            with lifetime.span.child(SpanName.DISPATCH) as span:
                started_s = self._clock()
                dispatch = dispatcher.dispatch(carried(request, placement, span), placement)
                try:
                    async with (
                        aclosing(dispatch.deltas()) as raw,
                        aclosing(_checked(raw, request)) as deltas,
                    ):
                        async for delta in deltas:
                            if delta.usage is not None or not tokens:
                                attempted.note(delta, self._clock() - started_s)
                            tokens += len(delta.token_ids)
                            yield delta
                except DayzeroError as error:
                    span.fail(error)
                    attempted.error = error
                    delivered = tokens if lifetime.shown else 0
                    attempted.verdict = self._verdict(Attempt(lifetime.attempts, delivered, error))
                    if not attempted.verdict.retry:
                        raise
                    self._note_retry(error, dispatch, request, attempted.verdict)
                    if tokens:
                        yield RESTART
                    excluded |= {dispatch.replica} if dispatch.replica else set()
                else:
                    return
                finally:
                    attempted.replica = dispatch.replica
                    _describe(span, dispatch, lifetime.attempts)

    def _verdict(self, attempt: Attempt) -> Verdict:
        return retry.decide(attempt, self._policy, self._budget, self._clock())

    def _note_retry(
        self, error: DayzeroError, dispatch: Dispatch, request: EngineRequest, verdict: Verdict
    ) -> None:
        log.warning(
            "request %s: trying another replica after %s: %s",
            request.request_id,
            dispatch.replica,
            verdict.reason,
        )
        self._budget = self._budget.with_retry(self._clock())
        self._on_retry(error)


async def _checked(
    deltas: AsyncGenerator[TokenDelta, None], request: EngineRequest
) -> AsyncGenerator[TokenDelta, None]:
    """The deltas of one attempt. Raises EngineProtocolError for more than was asked, EngineDeadError for no real end."""
    tokens, ended = 0, False
    async for delta in deltas:
        tokens += len(delta.token_ids)
        if tokens > request.sampling.max_tokens:
            raise EngineProtocolError("The engine generates more than it was asked for.")
        late = request.deadline_s is not None and request.deadline_s <= time.time()
        if delta.finish in _BROKEN_OFF and not late:
            raise EngineDeadError("The engine ended this answer before it was complete.")
        ended = delta.finish is not None
        yield delta
    if not ended:
        raise EngineDeadError("The engine's answer ended without a finish.")


def placed(
    dispatcher: Dispatcher,
    request: EngineRequest,
    excluded: frozenset[str],
    lifetime: Lifetime,
    attempted: Attempted,
) -> Placement:
    """The dispatcher's placement, on a span and on the attempt. Raises NoReplicaError; the attempt has it then."""
    with lifetime.span.child(SpanName.PLACE) as span:
        try:
            placement = attempted.placement = dispatcher.place(request, excluded)
        except DayzeroError as error:
            attempted.error = error
            raise
        span.set(Attribute.PLACEMENT_REASON, placement.reason)
        span.set(Attribute.PREDICTED_S, placement.predicted_s)
        span.set(Attribute.PREDICTED_CACHED_TOKENS, placement.predicted_cached_tokens)
        span.set(Attribute.CANDIDATES, len(placement.scores))
        span.set(Attribute.REPLICA, placement.order[0] if placement.order else None)
        if placement.choice is not None:
            span.set(Attribute.TARGET_REGION, placement.choice.target)
            span.set(Attribute.REGION_WHY, placement.choice.why)
        return placement


def carried(request: EngineRequest, placement: Placement, span: Span) -> EngineRequest:
    """The request as it is sent: in the span's trace, with what the placement believes to be cached there."""
    cached = placement.predicted_cached_tokens or 0
    return msgspec.structs.replace(request, trace=inject(span), expected_cached_tokens=cached)


def _describe(span: Span, dispatch: Dispatch, attempt: int) -> None:
    span.set(Attribute.REPLICA, dispatch.replica)
    span.set(Attribute.ATTEMPT, attempt)
