"""A peer's health: left out after two probes, back after two, and a circuit that requests open and close."""

from hypothesis import given
from hypothesis import strategies as st

from dayzero.gateway.regions import health
from dayzero.gateway.regions.health import Health, HealthPolicy

RULES = HealthPolicy(down_after=2, up_after=2, open_after=3, open_s=1.0, open_max_s=8.0, refused_s=5.0)


def up():
    return health.probe_answered(Health(), RULES)


def failing(times, state=None, now_s=0.0, jitter=0.0):
    state = state or up()
    for _ in range(times):
        state = health.request_failed(state, RULES, now_s, jitter)
    return state


def test_a_peer_is_up_with_its_first_answer_and_down_with_its_second_failure_in_a_row():
    assert Health().why_not(0.0) == "not heard of yet"
    state = up()
    assert state.why_not(0.0) is None
    state = health.probe_failed(state, RULES, "no answer")
    assert state.why_not(0.0) is None
    state = health.probe_failed(state, RULES, "no answer")
    assert state.why_not(0.0) == "down: no answer"


def test_an_answer_between_two_failures_keeps_it_up():
    state = health.probe_failed(up(), RULES, "x")
    state = health.probe_failed(health.probe_answered(state, RULES), RULES, "x")
    assert state.up


def test_a_peer_that_was_down_comes_back_after_two_answers():
    state = health.probe_failed(health.probe_failed(up(), RULES, "x"), RULES, "x")
    state = health.probe_answered(state, RULES)
    assert "coming back" in state.why_not(0.0)
    assert health.probe_answered(state, RULES).why_not(0.0) is None


def test_a_refused_key_is_down_at_once_and_asked_again_seldom():
    state = health.refused(up(), RULES, 10.0, 0.5)
    assert "peer key" in state.why_not(10.0)
    assert not state.probe_due(17.4)
    assert state.probe_due(17.5)


def test_three_failed_requests_open_the_circuit_though_probes_are_answered():
    assert failing(2).why_not(0.0) is None
    state = failing(3)
    assert "failing" in state.why_not(0.5)
    assert "failing" in health.probe_answered(state, RULES).why_not(0.5)


def test_an_open_circuit_lets_one_request_through_at_a_time():
    state = failing(3)
    assert state.why_not(1.0) is None
    trial = state.sent()
    assert "trying" in trial.why_not(1.0)
    assert health.request_answered(trial).why_not(1.0) is None
    assert health.request_given_up(trial).why_not(1.0) is None


def test_a_trial_that_fails_doubles_the_rest_up_to_its_bound():
    state, now_s, rests = failing(3), 0.0, []
    for _ in range(6):
        rests.append(state.open_until_s - now_s)
        now_s = state.open_until_s
        state = failing(1, state.sent(), now_s)
    assert rests == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_requests_sent_before_it_opened_do_not_open_it_further():
    assert failing(40) == failing(3)


def test_jitter_stretches_the_rest():
    assert failing(3, jitter=0.25).open_until_s == 1.25


events = st.lists(
    st.sampled_from(["ok", "lost", "refused", "answered", "failed", "given up", "sent"]), max_size=60
)


def after(event, state, now_s, jitter):  # noqa: PLR0911
    match event:
        case "ok":
            return health.probe_answered(state, RULES)
        case "lost":
            return health.probe_failed(state, RULES, "x")
        case "refused":
            return health.refused(state, RULES, now_s, jitter)
        case "answered":
            return health.request_answered(state)
        case "failed":
            return health.request_failed(state, RULES, now_s, jitter)
        case "given up":
            return health.request_given_up(state)
        case _:
            return state.sent() if state.why_not(now_s) is None else state


@given(events, st.floats(0, 1))
def test_after_any_history_quiet_and_answers_bring_it_back(history, jitter):
    state, now_s = Health(), 0.0
    for event in history:
        now_s += 0.1
        state = after(event, state, now_s, jitter)
    now_s += RULES.open_max_s * 2 + RULES.refused_s * 2
    assert state.probe_due(now_s)
    state = health.probe_answered(health.probe_answered(state, RULES), RULES)
    state = health.request_given_up(state)  # whatever was on trial has ended by now
    assert state.why_not(now_s) is None
    assert health.request_answered(state.sent()).why_not(now_s) is None
