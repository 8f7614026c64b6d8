"""The watchdog's decision, over made-up observations and time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.watchdog import (
    DEFAULT_LIMITS,
    Observation,
    ProcessSample,
    Verdict,
    WatchState,
    decide,
    first_look,
)

LOOK_S = 0.5
IDLE_CPU_S = 0.0001  # what an idle vLLM core uses between two looks: its timers tick


class World:
    """An engine process and a clock that the test moves."""

    def __init__(self):
        self.now = 1000.0
        self.process = ProcessSample(pid=7, name="EngineCore", alive=True, cpu_s=20.0)
        self.progress = 0
        self.asked = True
        self.outstanding = 0
        self.reported = None
        self.state = first_look(self.observe(), self.now)

    def observe(self) -> Observation:
        return Observation(
            processes=(self.process,),
            progress=self.progress,
            asked=self.asked,
            outstanding=self.outstanding,
            reported=self.reported,
        )

    def look(self, *, after_s=LOOK_S, cpu_s=0.0, progress=0) -> WatchState:
        self.now += after_s
        self.progress += progress
        self.process = replace(self.process, cpu_s=self.process.cpu_s + cpu_s)
        self.state = decide(self.observe(), self.state, self.now)
        return self.state

    def seconds_until_dead(self, at_most_s: float, **look) -> float | None:
        began = self.now
        while self.now - began < at_most_s:
            if self.look(**look).verdict is Verdict.DEAD:
                return self.now - began
        return None


def test_an_idle_engine_that_answers_is_ok():
    world = World()
    for _ in range(1000):
        assert world.look(cpu_s=IDLE_CPU_S, progress=1).verdict is Verdict.OK


def test_an_idle_engine_that_nobody_asked_is_ok():
    world = World()
    world.asked = False
    assert world.seconds_until_dead(60, cpu_s=0.0) is None


def test_a_process_that_is_gone_is_dead_at_once_and_named():
    world = World()
    world.process = replace(world.process, alive=False)
    state = world.look()
    assert state.verdict is Verdict.DEAD
    assert state.reason == "EngineCore (pid 7) is gone"


def test_an_engine_that_calls_itself_dead_is_dead():
    world = World()
    world.reported = "vLLM reports that EngineCore ended"
    assert world.look(cpu_s=0.5, progress=5).verdict is Verdict.DEAD


@pytest.mark.parametrize("outstanding", [0, 3])
def test_a_stopped_process_is_suspect_first_and_dead_within_five_seconds(outstanding):
    world = World()
    world.outstanding = outstanding
    world.process = replace(world.process, stopped=True)
    assert world.look().verdict is Verdict.SUSPECT
    took_s = world.seconds_until_dead(10)
    assert took_s is not None
    assert took_s + LOOK_S < 5


def test_a_process_stopped_for_a_moment_is_forgiven():
    world = World()
    world.process = replace(world.process, stopped=True)
    world.look(), world.look()
    world.process = replace(world.process, stopped=False)
    assert world.look(cpu_s=0.1, progress=1).verdict is Verdict.OK
    world.process = replace(world.process, stopped=True)
    assert world.look().verdict is Verdict.SUSPECT, "the earlier stop must not count"


@pytest.mark.parametrize("outstanding", [0, 3])
def test_a_frozen_process_that_shows_no_stopped_state_is_dead_within_five_seconds(outstanding):
    world = World()  # a paused container: the state reads "sleeping"
    world.outstanding = outstanding
    world.look(cpu_s=IDLE_CPU_S, progress=1)
    took_s = world.seconds_until_dead(10)
    assert took_s is not None
    assert took_s < 5
    assert "frozen" in world.state.reason


@pytest.mark.parametrize("cpu_s", [LOOK_S, LOOK_S * 0.2])
def test_a_long_prefill_is_ok_for_minutes(cpu_s):
    world = World()
    world.outstanding = 1
    while world.now < 1000 + 300:
        assert world.look(cpu_s=cpu_s).verdict is Verdict.OK
    assert "a step has been running" in world.state.reason


def test_a_deadlocked_engine_is_dead_after_its_limit():
    world = World()
    world.outstanding = 1
    took_s = world.seconds_until_dead(DEFAULT_LIMITS.hung_s * 2, cpu_s=IDLE_CPU_S)
    assert took_s == pytest.approx(DEFAULT_LIMITS.hung_s, abs=2 * LOOK_S)
    assert "hung" in world.state.reason


def test_a_busy_loop_without_any_answer_is_dead_at_last():
    world = World()
    took_s = world.seconds_until_dead(DEFAULT_LIMITS.stuck_s * 2, cpu_s=LOOK_S)
    assert took_s == pytest.approx(DEFAULT_LIMITS.stuck_s, abs=2 * LOOK_S)
    assert "stuck" in world.state.reason


def test_a_gap_in_our_own_looking_proves_nothing():
    world = World()
    world.look(progress=1)
    state = world.look(after_s=120.0)  # the machine was suspended, and the engine with it
    assert state.verdict is Verdict.OK
    took_s = world.seconds_until_dead(10)
    assert took_s is not None, "frozen for good is still found afterwards"
    assert took_s >= DEFAULT_LIMITS.frozen_s - LOOK_S


def test_dead_is_final():
    world = World()
    world.reported = "gone"
    reason = world.look().reason
    world.reported = None
    state = world.look(cpu_s=1.0, progress=9)
    assert (state.verdict, state.reason) == (Verdict.DEAD, reason)


looks = st.tuples(
    st.floats(0.01, 60), st.one_of(st.just(0.0), st.floats(1e-6, 2)), st.integers(0, 3), st.booleans()
)


@given(st.lists(looks, max_size=60))
def test_a_live_engine_that_makes_progress_at_every_look_is_never_dead(steps):
    world = World()
    for after_s, cpu_s, progress, asked in steps:
        world.asked = asked
        state = world.look(after_s=after_s, cpu_s=cpu_s, progress=progress + 1)
        assert state.verdict is Verdict.OK


@given(st.lists(looks, max_size=30), st.sampled_from(["stopped", "frozen", "gone"]))
def test_whatever_went_before_the_end_is_found_within_five_seconds(steps, end):
    world = World()
    for after_s, cpu_s, progress, asked in steps:
        world.asked = asked
        if world.look(after_s=after_s, cpu_s=cpu_s, progress=progress).verdict is Verdict.DEAD:
            return
    world.asked = True
    world.process = replace(world.process, stopped=end == "stopped", alive=end != "gone")
    took_s = world.seconds_until_dead(10)
    assert took_s is not None
    assert took_s <= 5
