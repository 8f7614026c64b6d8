"""The gateway's pure rules: retry, readiness, outcomes; and the lifetime that settles once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.errors import ContextLengthError, EngineDeadError, EngineError
from dayzero.engine.types import TokenDelta, Usage
from dayzero.gateway.errors import ClientGoneError, DeadlineError
from dayzero.gateway.lifetime import InFlight, Lifetime, Outcome
from dayzero.gateway.readiness import Evidence, judge
from dayzero.gateway.retry import Attempt, Budget, RetryPolicy, decide

POLICY = RetryPolicy(max_attempts=3, budget_share=0.2, budget_floor_per_s=1.0)
DEAD = EngineDeadError("gone")


def test_a_first_failure_without_tokens_is_retried():
    assert decide(Attempt(1, 0, DEAD), POLICY, Budget(), 0.0).retry


@pytest.mark.parametrize(
    ("attempt", "word"),
    [
        (Attempt(1, 1, DEAD), "delivered"),
        (Attempt(1, 0, ContextLengthError("long")), "same way"),
        (Attempt(1, 0, EngineError("broken")), "same way"),
        (Attempt(3, 0, DEAD), "attempts"),
    ],
)
def test_what_another_replica_cannot_mend_is_not_retried(attempt, word):
    verdict = decide(attempt, POLICY, Budget(), 0.0)
    assert not verdict.retry
    assert word in verdict.reason


@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=400))
def test_retries_stay_within_their_share_of_requests_and_the_floor(gaps):
    budget, now, retries = Budget(), 0.0, 0
    for gap in gaps:
        now += gap
        budget = budget.with_request(now)
        if decide(Attempt(1, 0, DEAD), POLICY, budget, now).retry:
            budget = budget.with_retry(now)
            retries += 1
    # Everything fades by the same factor, so the bound is the one at an instant plus what faded since.
    assert retries <= POLICY.budget_share * len(gaps) + POLICY.budget_floor_per_s * (10.0 + 2 * now) + 1


def test_a_spent_budget_comes_back_with_time():
    budget = Budget()
    while decide(Attempt(1, 0, DEAD), POLICY, budget, 0.0).retry:
        budget = budget.with_retry(0.0)
    assert decide(Attempt(1, 0, DEAD), POLICY, budget, 30.0).retry


def test_ready_means_an_answer_within_three_periods():
    assert not judge(Evidence(), 10.0, 0.0).ready
    assert judge(Evidence(last_answer_s=0.0), 10.0, 30.0).ready
    late = judge(Evidence(last_answer_s=0.0, last_failure="a canary failed"), 10.0, 31.0)
    assert not late.ready
    assert "a canary failed" in late.reason


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (None, Outcome.OK, 200),
        (ClientGoneError("left"), Outcome.CLIENT_GONE, 499),
        (asyncio.CancelledError(), Outcome.CLIENT_GONE, 499),
        (DeadlineError("late"), Outcome.DEADLINE, 504),
        (ContextLengthError("long"), Outcome.REFUSED, 400),
        (DEAD, Outcome.ERROR, 503),
        (RuntimeError("bug"), Outcome.ERROR, 500),
    ],
)
def test_a_lifetime_settles_once_with_the_outcome_of_its_exit(error, outcome, status):
    settled, released, in_flight = [], [], InFlight()
    with Lifetime("r", "route", in_flight, [settled.append], lambda: 0.0) as lifetime:
        assert len(in_flight) == 1
        lifetime.on_close(lambda: released.append(True))
        lifetime.close(error)
        lifetime.close(RuntimeError("a second close changes nothing"))
    assert len(in_flight) == 0
    assert released == [True]
    assert [(s.outcome, s.status) for s in settled] == [(outcome, status)]


def test_tokens_are_counted_once_and_gaps_measured_between_them():
    now = [0.0]
    with Lifetime("r", "route", InFlight(), [], lambda: now[0]) as lifetime:
        now[0] = 2.0
        first = TokenDelta(token_ids=(1,), usage=Usage(prompt_tokens=9, completion_tokens=1, cached_tokens=4))
        assert lifetime.count(first) is None
        now[0] = 2.5
        assert lifetime.count(TokenDelta(token_ids=(2, 3))) == pytest.approx(0.5)
        assert lifetime.count(TokenDelta()) is None
        assert (lifetime.completion_tokens, lifetime.cached_tokens, lifetime.first_token_s) == (3, 4, 2.0)
