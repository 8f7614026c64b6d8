"""Fit: a replica's coefficients, learned from the seconds that its first tokens really took.

- Pure: `fitted(fit, sample, now_s)` gives the next fit. A fit starts at its prior and returns to it when nothing is
  measured for long: a replica that was once slow gets requests again.
- What is fitted are the factors by which a replica differs from the prior's coefficients, so all have one scale. A
  coefficient is never negative, never NaN, and within `FACTOR` of the profile's; one that is 0 there stays 0.
- The method is recursive least squares with forgetting and a ridge around the prior, in its form as a Kalman filter
  of drifting parameters (Ljung, System Identification, 2nd ed., section 11.2), with covariance that grows towards
  the prior's and no further (stabilised forgetting; Kulhavy and Zarrop 1993), and with Huber's weights (1964) on
  the residuals: a sample far from its prediction counts by its sign more than by its size.
- `Fits` holds one fit a replica and one of all of them. The latter is the prior of each: what the same hardware
  taught elsewhere holds for a replica that nothing was sent to yet. A replica that differs little from all is
  given the same coefficients as the others, so that noise does not break ties between equals.
"""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from dayzero.router.load import CostModel, ReplicaId, Score

FACTOR = 20.0
"""A coefficient may be this many times the profile's, or its part."""

HALF_LIFE_S = 300.0
"""Without samples a fit is halfway back to its prior after so long."""

REFRESH_S = 0.5
"""What replicas teach each other is used so often."""

_PRIOR_VARIANCE = 0.5
"""Of a factor, before anything is measured."""
_DRIFT = 0.0002
"""Variance that a factor gains from one sample to the next: tens of samples are remembered."""
_NOISE_SHARE = 0.2
"""How far a time may stray from its prediction without meaning anything, as a share of it..."""
_NOISE_S = 0.005
"""...and at least."""
_HUBER = 1.5
"""Residuals beyond so many noises have their weight reduced."""
_LONGEST_S = 3600.0
_MOST = 1e9
"""Tokens or requests beyond this are no measurement, and would cost the arithmetic its digits."""
_ALIKE = math.log(1.15)
"""A replica whose usual request takes about this much more or less than elsewhere counts as equal; one that differs
by twice that, as it is."""
_FEW, _ENOUGH = 4, 20
"""Samples of its own below which a replica counts as like the others, and from which on as it is: one that looked slow
at first would never be asked again and so never be known better."""
_TYPICAL_KEEP = 0.95

Factors = tuple[float, float, float, float]
Rows = tuple[Factors, Factors, Factors, Factors]
_NAMES = ("fixed_s", "prefill_s_per_token", "decode_s_per_running", "slot_s")
_ONE: Factors = (1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One first token: what the prediction was made from, and what came.

    `uncached_tokens`: the request's own. `ahead_tokens`: backlog when it was sent. `running`: requests that shared
    steps with it. `beyond`: requests over the slots, its own included. `queue_s`: the wait inside the engine before
    anything was computed, where the engine reports it.
    """

    uncached_tokens: float
    ahead_tokens: float
    running: float
    beyond: float
    first_token_s: float
    queue_s: float | None = None

    @classmethod
    def of(cls, score: Score, first_token_s: float, queue_s: float | None = None) -> "Sample":
        """What came of a prediction."""
        cost = score.cost

        def per(part_s: float, coefficient: float) -> float:
            return part_s / coefficient if coefficient > 0 else 0.0

        return cls(
            uncached_tokens=per(score.prefill_s, cost.prefill_s_per_token),
            ahead_tokens=per(score.queue_s, cost.prefill_s_per_token),
            running=per(score.decode_s, cost.decode_s_per_running),
            beyond=per(score.slot_s, cost.slot_s),
            first_token_s=first_token_s,
            queue_s=queue_s,
        )

    @property
    def sane(self) -> bool:
        counts = (self.uncached_tokens, self.ahead_tokens, self.running, self.beyond)
        times = (self.first_token_s, 0.0 if self.queue_s is None else self.queue_s)
        return all(0 <= count <= _MOST for count in counts) and all(
            math.isfinite(time_s) and time_s >= 0 for time_s in times
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """`factors` of the prior's coefficients (in the order of `_NAMES`), and their covariance.

    `typical`: how often each coefficient counted in the samples lately.
    """

    profile: CostModel
    prior: CostModel
    factors: Factors = _ONE
    covariance: Rows | None = None
    typical: Factors = (1.0, 0.0, 0.0, 0.0)
    samples: int = 0
    at_s: float = -math.inf

    @classmethod
    def start(cls, profile: CostModel) -> "Fit":
        return cls(profile, profile)

    def around(self, prior: CostModel) -> "Fit":
        """The same coefficients, told as factors of another prior."""
        if prior == self.prior:
            return self
        told = [
            factor * before / after if after > 0 else 1.0
            for factor, before, after in zip(
                self.factors, coefficients(self.prior), coefficients(prior), strict=True
            )
        ]
        return replace(self, prior=prior, factors=(told[0], told[1], told[2], told[3]))

    def cost(self, now_s: float) -> CostModel:
        """What it comes to now."""
        keep = _kept(now_s - self.at_s)
        return self._cost([1 + keep * (factor - 1) for factor in self.factors])

    def _cost(self, factors: list[float]) -> CostModel:
        told = zip(_NAMES, factors, coefficients(self.prior), coefficients(self.profile), strict=True)
        return CostModel(
            **{
                name: min(max(factor * prior, profile / FACTOR), profile * FACTOR)
                for name, factor, prior, profile in told
            }
        )


def coefficients(cost: CostModel) -> Factors:
    return (cost.fixed_s, cost.prefill_s_per_token, cost.decode_s_per_running, cost.slot_s)


def fitted(fit: Fit, sample: Sample, now_s: float) -> Fit:
    """The fit after one more sample. A sample that is no measurement (negative, NaN, absurd) changes nothing."""
    if not sample.sane:
        return fit
    factors, covariance = _drifted(fit, now_s)
    for row, seconds in _equations(sample):
        weights = [
            count * coefficient for count, coefficient in zip(row, coefficients(fit.prior), strict=True)
        ]
        _learn(factors, covariance, weights, min(seconds, _LONGEST_S))
    bounded = coefficients(fit._cost(factors))  # noqa: SLF001 its own function
    told = [
        value / prior if prior > 0 else 1.0
        for value, prior in zip(bounded, coefficients(fit.prior), strict=True)
    ]
    rows = tuple((row[0], row[1], row[2], row[3]) for row in covariance)
    return replace(
        fit,
        factors=(told[0], told[1], told[2], told[3]),
        covariance=(rows[0], rows[1], rows[2], rows[3]),
        typical=_joined(sample) if not fit.samples else _mixed(fit.typical, _joined(sample)),
        samples=fit.samples + 1,
        at_s=max(now_s, fit.at_s),
    )


def _kept(passed_s: float) -> float:
    return math.exp2(-max(passed_s, 0.0) / HALF_LIFE_S)


def _drifted(fit: Fit, now_s: float) -> tuple[list[float], list[list[float]]]:
    """Factors and covariance as they are before a sample: nearer to the prior by the time that passed."""
    if fit.covariance is None:
        return list(fit.factors), [[_PRIOR_VARIANCE if i == j else 0.0 for j in range(4)] for i in range(4)]
    keep = _kept(now_s - fit.at_s)
    factors = [1 + keep * (factor - 1) for factor in fit.factors]
    # A stationary process around the prior: variance returns to the prior's and never exceeds it.
    stay = keep * keep * (1 - _DRIFT / _PRIOR_VARIANCE)
    covariance = [[stay * value for value in row] for row in fit.covariance]
    for i in range(4):
        covariance[i][i] += (1 - stay) * _PRIOR_VARIANCE
    return factors, covariance


def _equations(sample: Sample) -> list[tuple[Factors, float]]:
    """How often each coefficient counts, and the seconds they come to. A known wait is an equation of its own."""
    own = (1.0, sample.uncached_tokens, sample.running, 0.0)
    ahead = (0.0, sample.ahead_tokens, 0.0, sample.beyond)
    if sample.queue_s is None:
        return [(_joined(sample), sample.first_token_s)]
    queue_s = min(sample.queue_s, sample.first_token_s)
    return [(own, sample.first_token_s - queue_s), (ahead, queue_s)]


def _joined(sample: Sample) -> Factors:
    return (1.0, sample.uncached_tokens + sample.ahead_tokens, sample.running, sample.beyond)


def _mixed(before: Factors, new: Factors) -> Factors:
    told = [old + (1 - _TYPICAL_KEEP) * (one - old) for old, one in zip(before, new, strict=True)]
    return told[0], told[1], told[2], told[3]


def _learn(factors: list[float], covariance: list[list[float]], weights: list[float], seconds: float) -> None:
    """One measurement update, in place: seconds = weights · factors + noise."""
    predicted_s = sum(weight * factor for weight, factor in zip(weights, factors, strict=True))
    noise_s = max(_NOISE_S, _NOISE_SHARE * predicted_s)
    residual_s = seconds - predicted_s
    strayed = abs(residual_s) / noise_s
    noise = noise_s * noise_s * max(1.0, strayed / _HUBER)
    spread = [sum(value * weight for value, weight in zip(row, weights, strict=True)) for row in covariance]
    scale = 1 / (noise + sum(weight * value for weight, value in zip(weights, spread, strict=True)))
    for i in range(4):
        factors[i] += spread[i] * scale * residual_s
        for j in range(4):
            covariance[i][j] -= spread[i] * scale * spread[j]


class Fits:
    """Every replica's fit, and that of all of them. One event loop owns it."""

    def __init__(self, profile: CostModel, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Fit.start(profile)
        self._fits: dict[ReplicaId, Fit] = {}
        self._warm: set[ReplicaId] = set()
        self._usual = profile
        self._costs: dict[ReplicaId, CostModel] = {}
        self._worked_out_s = -math.inf

    def cost(self, replica: ReplicaId) -> CostModel:
        """What to predict with: what all taught, unless this one differs. Costs a look-up, at most times."""
        now_s = self._clock()
        # All at once: equals that were worked out at different times would not be equal.
        if not 0 <= now_s - self._worked_out_s < REFRESH_S:
            self._worked_out_s = now_s
            self._usual = self._all.cost(now_s)
            self._costs.clear()
        if replica not in self._fits:
            return self._usual
        if replica not in self._costs:
            self._costs[replica] = self._work_out(self._fits[replica], now_s)
        return self._costs[replica]

    def _work_out(self, fit: Fit, now_s: float) -> CostModel:
        own = fit.around(self._usual).cost(now_s)
        evidence = min(max((fit.samples - _FEW) / (_ENOUGH - _FEW), 0.0), 1.0)
        counted = evidence * _difference(own, self._usual, fit.typical)
        if not counted:
            return self._usual
        pairs = zip(_NAMES, coefficients(own), coefficients(self._usual), strict=True)
        return CostModel(
            **{name: usual * (mine / usual) ** counted if usual > 0 else mine for name, mine, usual in pairs}
        )

    def observe(self, replica: ReplicaId, sample: Sample) -> None:
        """The first of a replica is let go: it finds connections and code cold, here and there."""
        if replica not in self._warm:
            self._warm.add(replica)
            return
        now_s = self._clock()
        self._all = fitted(self._all, sample, now_s)
        before = self._fits.get(replica) or Fit.start(self._all.profile)
        self._fits[replica] = fitted(before.around(self._all.cost(now_s)), sample, now_s)
        self._costs.pop(replica, None)

    def keep(self, replicas: Collection[ReplicaId]) -> None:
        """Forgets all others: they are gone. Another of their name starts from what all taught."""
        for gone in self._warm - set(replicas):
            self._fits.pop(gone, None)
            self._costs.pop(gone, None)
            self._warm.discard(gone)

    def __len__(self) -> int:
        return len(self._fits)


def _difference(own: CostModel, everywhere: CostModel, typical: Factors) -> float:
    """How far to go from everywhere's coefficients to its own, 0 to 1: all of them together, as they were learned."""
    own_s, usual_s = (
        sum(count * coefficient for count, coefficient in zip(typical, coefficients(cost), strict=True))
        for cost in (own, everywhere)
    )
    if own_s <= 0 or usual_s <= 0:
        return 0.0
    return min(max(abs(math.log(own_s / usual_s)) / _ALIKE - 1, 0.0), 1.0)
