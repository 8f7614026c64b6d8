"""Generation with retries: placements, attempts, and the one decision whether to try again.

An attempt's span is a child of the request's, so that a retry stands beside what it retries.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.errors import DayzeroError
from dayzero.gateway import retry
from dayzero.gateway.dispatch import Dispatch, Dispatcher
from dayzero.gateway.lifetime import Lifetime
from dayzero.gateway.retry import Attempt, Budget, RetryPolicy
from dayzero.router.place import Placement
from dayzero.telemetry import Attribute, Span, SpanName, inject

log = logging.getLogger(__name__)


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
        excluded: frozenset[str] = frozenset()
        while True:
            lifetime.attempts += 1
            placement = self._place(dispatcher, request, excluded, lifetime)
            tokens = 0
            with lifetime.span.child(SpanName.DISPATCH) as span:
                carried = msgspec.structs.replace(request, trace=inject(span))
                dispatch = dispatcher.dispatch(carried, placement)
                try:
                    async with aclosing(dispatch.deltas()) as deltas:
                        async for delta in deltas:
                            tokens += len(delta.token_ids)
                            yield delta
                except DayzeroError as error:
                    span.fail(error)
                    self._retry_or_raise(Attempt(lifetime.attempts, tokens, error), dispatch, request)
                    excluded |= {dispatch.replica} if dispatch.replica else set()
                else:
                    return
                finally:
                    _describe(span, dispatch, lifetime.attempts)

    def _place(
        self, dispatcher: Dispatcher, request: EngineRequest, excluded: frozenset[str], lifetime: Lifetime
    ) -> Placement:
        with lifetime.span.child(SpanName.PLACE) as span:
            placement = dispatcher.place(request, excluded)
            span.set(Attribute.PLACEMENT_REASON, placement.reason)
            span.set(Attribute.PREDICTED_S, placement.scores[0].total_s)
            span.set(Attribute.CANDIDATES, len(placement.scores))
            return placement

    def _retry_or_raise(self, attempt: Attempt, dispatch: Dispatch, request: EngineRequest) -> None:
        verdict = retry.decide(attempt, self._policy, self._budget, self._clock())
        if not verdict.retry:
            raise attempt.error
        log.warning(
            "request %s: trying another replica after %s: %s",
            request.request_id,
            dispatch.replica,
            verdict.reason,
        )
        self._budget = self._budget.with_retry(self._clock())
        self._on_retry(attempt.error)


def _describe(span: Span, dispatch: Dispatch, attempt: int) -> None:
    span.set(Attribute.REPLICA, dispatch.replica)
    span.set(Attribute.ATTEMPT, attempt)
