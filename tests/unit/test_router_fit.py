"""Coefficients learned online: bounded whatever comes, near the truth after tens of samples."""

import dataclasses
import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.performance import StepLoad
from dayzero.engine.simulated_profile import load_profile
from dayzero.router.fit import FACTOR, HALF_LIFE_S, Fit, Fits, Sample, coefficients, fitted
from dayzero.router.load import Candidate, CostModel, Load, ReplicaId, score

PROFILE = CostModel(fixed_s=0.03, prefill_s_per_token=0.0001, decode_s_per_running=0.002, slot_s=0.1)

any_floats = st.floats(allow_nan=True, allow_infinity=True)
samples = st.builds(
    Sample,
    *[any_floats | st.floats(0, 1e6) for _ in range(5)],
    st.none() | any_floats | st.floats(0, 100),
)
costs = st.builds(CostModel, *[st.just(0.0) | st.floats(1e-6, 10) for _ in range(4)])


def seconds(cost, sample):
    counts = (1, sample.uncached_tokens + sample.ahead_tokens, sample.running, sample.beyond)
    return sum(count * coefficient for count, coefficient in zip(counts, coefficients(cost), strict=True))


def work(rng, cost, noise=0.0, *, told=False):
    """A request as traffic brings it, with the time that `cost` gives it."""
    sample = Sample(
        uncached_tokens=rng.choice([100, 1000, 4000, 20_000]),
        ahead_tokens=rng.choice([0, 0, 0, 3000, 10_000]),
        running=rng.randint(0, 32),
        beyond=rng.choice([0, 0, 0, 1, 3]),
        first_token_s=0.0,
    )
    stray = math.exp(rng.gauss(0, noise))
    queue_s = sample.ahead_tokens * cost.prefill_s_per_token + sample.beyond * cost.slot_s if told else None
    return dataclasses.replace(
        sample,
        first_token_s=seconds(cost, sample) * stray,
        queue_s=None if queue_s is None else queue_s * stray,
    )


def taught(fit, cost, count, *, seed=1, noise=0.1, start_s=0.0, told=False):
    rng = random.Random(seed)
    for i in range(count):
        fit = fitted(fit, work(rng, cost, noise, told=told), start_s + i)
    return fit


def times(cost, factor):
    return CostModel(*[coefficient * factor for coefficient in coefficients(cost)])


def error(fit_cost, cost, seed=99):
    """The median of predictions' relative errors on fresh work."""
    rng = random.Random(seed)
    fresh = [work(rng, cost) for _ in range(200)]
    return statistics.median(abs(seconds(fit_cost, s) / s.first_token_s - 1) for s in fresh)


@given(costs, st.lists(st.tuples(samples, st.floats(-10, 1000)), max_size=12), st.floats(-1e6, 1e6))
def test_whatever_comes_coefficients_stay_finite_and_within_their_bounds(profile, history, now_s):
    fit = Fit.start(profile)
    for sample, at_s in history:
        fit = fitted(fit, sample, at_s)
    for learned, given_ in zip(coefficients(fit.cost(now_s)), coefficients(profile), strict=True):
        assert math.isfinite(learned)
        assert given_ / FACTOR * 0.999 <= learned <= given_ * FACTOR * 1.001
        assert given_ or not learned


@given(st.lists(st.tuples(st.sampled_from("abc"), samples, st.floats(0, 100)), max_size=15))
def test_whatever_comes_the_owner_of_fits_gives_usable_coefficients(history):
    now_s = 0.0
    fits = Fits(PROFILE, clock=lambda: now_s)
    for name, sample, later_s in history:
        now_s += later_s
        fits.observe(ReplicaId(name), sample)
        for learned, given_ in zip(
            coefficients(fits.cost(ReplicaId(name))), coefficients(PROFILE), strict=True
        ):
            assert given_ / FACTOR * 0.999 <= learned <= given_ * FACTOR * 1.001


@given(samples)
def test_a_fit_is_a_function_of_its_samples(sample):
    once, again = (fitted(Fit.start(PROFILE), sample, 5.0) for _ in range(2))
    assert once == again


def test_without_samples_the_profile_holds():
    assert Fit.start(PROFILE).cost(1e9) == PROFILE
    assert Fits(PROFILE).cost(ReplicaId("new")) == PROFILE


@pytest.mark.parametrize("told", [False, True])
def test_a_right_profile_stays_right(told):
    fit = taught(Fit.start(PROFILE), PROFILE, 300, told=told)
    assert error(fit.cost(300), PROFILE) < 0.06


@pytest.mark.parametrize("factor", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("told", [False, True])
def test_tens_of_samples_find_a_replica_of_another_speed_and_back(factor, told):
    other = times(PROFILE, factor)
    slow = taught(Fit.start(PROFILE), other, 40, told=told)
    assert error(slow.cost(40), other) < 0.12
    back = taught(slow, PROFILE, 60, seed=2, start_s=40, told=told)
    assert error(back.cost(100), PROFILE) < 0.12


def test_coefficients_are_told_apart():
    """Prefill three times slower, all else as written."""
    real = dataclasses.replace(PROFILE, prefill_s_per_token=3 * PROFILE.prefill_s_per_token)
    fit = taught(Fit.start(PROFILE), real, 150, noise=0.05).cost(150)
    assert fit.prefill_s_per_token == pytest.approx(real.prefill_s_per_token, rel=0.1)
    assert fit.decode_s_per_running == pytest.approx(real.decode_s_per_running, rel=0.5)


@pytest.mark.parametrize("absurd_s", [0.0, 60.0, 1e9])
def test_one_absurd_sample_changes_nothing_much(absurd_s):
    fit = taught(Fit.start(PROFILE), PROFILE, 100)
    rng = random.Random(3)
    absurd = dataclasses.replace(work(rng, PROFILE), first_token_s=absurd_s)
    before, after = fit.cost(101), fitted(fit, absurd, 101).cost(101)
    rng = random.Random(4)
    for _ in range(100):
        sample = work(rng, PROFILE)
        assert seconds(after, sample) == pytest.approx(seconds(before, sample), rel=0.15)


def test_one_in_ten_absurd_samples_do_not_win():
    fit, rng = Fit.start(PROFILE), random.Random(5)
    for i in range(300):
        sample = work(rng, PROFILE, 0.1)
        if rng.random() < 0.1:
            sample = dataclasses.replace(sample, first_token_s=30 * sample.first_token_s)
        fit = fitted(fit, sample, float(i))
    assert error(fit.cost(300), PROFILE) < 0.3


def test_a_fit_returns_to_its_prior_when_nothing_is_measured():
    slow = taught(Fit.start(PROFILE), times(PROFILE, 3), 60)
    at_s = slow.at_s
    away = [slow.cost(at_s + age_s).prefill_s_per_token for age_s in (0, HALF_LIFE_S, 10 * HALF_LIFE_S)]
    assert away[0] > 2.5 * PROFILE.prefill_s_per_token
    assert away[1] == pytest.approx((away[0] + PROFILE.prefill_s_per_token) / 2)
    assert away[2] == pytest.approx(PROFILE.prefill_s_per_token, rel=0.01)


def test_a_clock_that_was_set_back_forgets_nothing():
    fit = taught(Fit.start(PROFILE), times(PROFILE, 2), 40)
    assert error(fit.cost(-1e6), times(PROFILE, 2)) < 0.12
    assert error(fitted(fit, work(random.Random(1), times(PROFILE, 2)), -5).cost(0), times(PROFILE, 2)) < 0.12


def test_a_sample_is_read_back_from_a_prediction():
    candidate = Candidate(ReplicaId("a"), slots=8, max_requests=64, reusable_tokens=512)
    predicted = score(candidate, Load(10, 3000, known=True), 2048, PROFILE)
    sample = Sample.of(predicted, 0.4, 0.1)
    assert sample == Sample(
        pytest.approx(1536), pytest.approx(3000), pytest.approx(8), pytest.approx(3), 0.4, 0.1
    )
    assert seconds(PROFILE, sample) == pytest.approx(predicted.total_s)


# A replica of the performance model, which is not linear in our terms


class Machine:
    """Kimi K3 on GB300, `slowness` times slower: prefill in chunks, while others decode."""

    def __init__(self, slowness=1.0):
        profile = load_profile("kimi-k3-gb300-tp8")
        self._step, self._limits, self._slowness = profile.step, profile.limits, slowness

    def sample(self, rng, *, told=False):
        uncached = int(math.exp(rng.uniform(math.log(200), math.log(60_000))))
        cached = rng.choice([0, 0, 1536, 30_720])
        ahead = rng.choice([0, 0, 5000, 40_000])
        running = rng.randint(0, 48)
        queue_s = self._prefill_s(ahead, 0, running)
        first_s = queue_s + self._prefill_s(uncached, cached, running) + 0.004
        stray = math.exp(rng.gauss(0, 0.1))
        return Sample(uncached, ahead, running, 0, first_s * stray, queue_s * stray if told else None)

    def _prefill_s(self, tokens, cached, running):
        total_s, chunk = 0.0, self._limits.batched_tokens
        for start in range(cached, cached + tokens, chunk):
            count = min(chunk, cached + tokens - start)
            context = count * start + count * (count + 1) // 2
            total_s += self._step.seconds(StepLoad(count, context, running, running * 4000))
        return total_s * self._slowness


CRUDE = CostModel()
"""The default profile, made for a small model on a CPU."""


def machine_error(cost, machine, seed=77):
    rng = random.Random(seed)
    return statistics.median(
        abs(seconds(cost, s) / s.first_token_s - 1) for s in (machine.sample(rng) for _ in range(300))
    )


@pytest.mark.parametrize("told", [False, True])
def test_a_crude_profile_learns_a_machine_of_the_performance_model(told):
    machine, rng, fit = Machine(), random.Random(6), Fit.start(CRUDE)
    assert machine_error(CRUDE, machine) > 5
    for i in range(80):
        fit = fitted(fit, machine.sample(rng, told=told), float(i))
    assert machine_error(fit.cost(80), machine) < 0.25


@pytest.mark.parametrize("told", [False, True])
def test_a_machine_that_slows_to_half_its_speed_and_recovers_is_followed(told):
    rng, fit, at_s = random.Random(8), Fit.start(CRUDE), itertools.count()
    for slowness in (1.0, 2.0, 1.0):
        machine = Machine(slowness)
        for _ in range(80):
            fit = fitted(fit, machine.sample(rng, told=told), float(next(at_s)))
        assert machine_error(fit.cost(fit.at_s), machine) < 0.25, f"at slowness {slowness}"


# All replicas together


def watched(slownesses, rounds, seed=9, noise=0.15):
    """Fits of replicas that each had `rounds` requests."""
    now_s, rng = 0.0, random.Random(seed)
    fits = Fits(PROFILE, clock=lambda: now_s)
    for _ in range(rounds):
        for name, slowness in slownesses.items():
            now_s += 0.1
            fits.observe(ReplicaId(name), work(rng, times(PROFILE, slowness), noise))
    return fits


def test_a_replica_that_nothing_was_sent_to_is_thought_to_be_like_the_others():
    fits = watched({"a": 3.0, "b": 3.0}, 50)
    assert error(fits.cost(ReplicaId("new")), times(PROFILE, 3)) < 0.12


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_tell_equal_replicas_apart(seed):
    fits = watched({"a": 1.0, "b": 1.0, "c": 1.0}, 100, seed=seed)
    assert fits.cost(ReplicaId("a")) == fits.cost(ReplicaId("b")) == fits.cost(ReplicaId("c"))


def test_a_slow_replica_is_told_apart_from_the_others():
    fits = watched({"a": 1.0, "b": 1.0, "c": 1.0, "slow": 2.0}, 60)
    assert error(fits.cost(ReplicaId("slow")), times(PROFILE, 2)) < 0.15
    assert error(fits.cost(ReplicaId("a")), PROFILE) < 0.15


def test_a_slow_replica_that_nothing_is_sent_to_is_forgiven():
    now_s, rng = 0.0, random.Random(10)
    fits = Fits(PROFILE, clock=lambda: now_s)
    for _ in range(60):
        now_s += 1
        fits.observe(ReplicaId("good"), work(rng, PROFILE, 0.05))
        fits.observe(ReplicaId("bad"), work(rng, times(PROFILE, 4), 0.05))
    bad, good = ReplicaId("bad"), ReplicaId("good")
    assert fits.cost(bad).prefill_s_per_token > 2 * fits.cost(good).prefill_s_per_token
    for _ in range(int(6 * HALF_LIFE_S / 10)):
        now_s += 10
        fits.observe(good, work(rng, PROFILE, 0.05))
    assert fits.cost(bad).prefill_s_per_token == pytest.approx(fits.cost(good).prefill_s_per_token, rel=0.05)


def test_equals_stay_equal_while_samples_come_in():
    """Worked out at different times, two replicas would differ by what was learned between."""
    now_s, rng = 0.0, random.Random(12)
    fits = Fits(PROFILE, clock=lambda: now_s)
    fast = times(PROFILE, 0.3)
    for _ in range(40):
        for name in ("a", "b"):
            now_s += 0.07
            fits.observe(ReplicaId(name), work(rng, fast, 0.05))
            assert fits.cost(ReplicaId("new")) in {PROFILE, fits._usual}
    assert fits.cost(ReplicaId("a")) == fits.cost(ReplicaId("b")) == fits.cost(ReplicaId("new"))
    assert error(fits.cost(ReplicaId("new")), fast) < 0.12


def test_a_replica_that_went_is_forgotten():
    fits = watched({"a": 1.0, "slow": 4.0}, 60)
    slow = fits.cost(ReplicaId("slow"))
    fits.keep({ReplicaId("a"), ReplicaId("never there")})
    assert len(fits) == 1
    assert fits.cost(ReplicaId("slow")) != slow
    assert fits.cost(ReplicaId("slow")) == fits.cost(ReplicaId("new"))
