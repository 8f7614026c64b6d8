"""Load: what is known of each replica, and the seconds to a first token predicted from it.

- Everything is in one unit, seconds: work of a 500,000-token prompt weighs what it costs, not 1, and what a cache
  gives weighs the seconds it saves, no more: a hot prefix spreads once its holder's queue costs more than
  computing it elsewhere.
- A replica's own report is believed while it is fresh, and what this gateway sent since is added to it.
- What a decision makes anew for each candidate are msgspec structs: they cost a tenth of frozen dataclasses.
- A missing or stale report is missing, not zero: such a replica is assumed to carry what the others carry on
  average, and at least what this gateway itself has there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NewType

import msgspec

ReplicaId = NewType("ReplicaId", str)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds that a request costs on this hardware. All are 0 or more.

    `slot_s`: seconds until a replica that runs all it can has room for one more.
    """

    fixed_s: float = 0.02
    prefill_s_per_token: float = 0.0008
    decode_s_per_running: float = 0.01
    slot_s: float = 0.2


class Report(msgspec.Struct, frozen=True):
    """What a replica said of itself. `backlog_tokens`: uncached prompt tokens it has yet to prefill.

    `at_s` is on this gateway's clock: when the report came in, less the age it gave itself.
    """

    running: int
    waiting: int
    backlog_tokens: int
    at_s: float


class OwnLoad(msgspec.Struct, frozen=True):
    """What this gateway has at a replica: requests, and uncached prompt tokens without a first token yet."""

    requests: int = 0
    prefill_tokens: int = 0


class Candidate(msgspec.Struct, frozen=True):
    """One replica as this gateway sees it.

    `unreported`: the part of `own` that the report cannot hold yet, because it was sent after it.
    `slots`: requests that run at once; more wait. `max_requests`: what it accepts, waiting ones included.
    `reusable_tokens`: how much of the request's prompt it has cached; None where nobody knows, which counts as 0.
    `cost`: its own coefficients; None: those of the view.
    """

    replica: ReplicaId
    slots: int
    max_requests: int
    healthy: bool = True
    draining: bool = False
    report: Report | None = None
    own: OwnLoad = OwnLoad()
    unreported: OwnLoad = OwnLoad()
    reusable_tokens: int | None = None
    cost: CostModel | None = None


class Score(msgspec.Struct, frozen=True):
    """Predicted seconds to the first token at a replica, in parts."""

    replica: ReplicaId
    fixed_s: float
    queue_s: float
    """Prefill of what is there already."""
    slot_s: float
    """Waiting for a slot where all are taken."""
    decode_s: float
    """Sharing steps with what decodes."""
    prefill_s: float
    """The request's own, of what is not cached."""
    reusable_tokens: int | None = None
    """Of the prompt; None: not known."""
    cost: CostModel = CostModel()
    """The coefficients it was made with."""

    @property
    def total_s(self) -> float:
        return self.fixed_s + self.queue_s + self.slot_s + self.decode_s + self.prefill_s


class Load(msgspec.Struct, frozen=True):
    """What is believed to be at a replica now."""

    requests: float
    backlog_tokens: float
    known: bool
    """From a fresh report; else assumed."""


def loads(candidates: Iterable[Candidate], now_s: float, report_max_age_s: float) -> Mapping[ReplicaId, Load]:
    """The load of each candidate; those without a fresh report get the mean of those with one."""
    known: dict[ReplicaId, Load] = {}
    unknown: list[Candidate] = []
    for candidate in candidates:
        report = candidate.report
        # A report from the future is a clock that was set back: as good as new.
        if report is None or now_s - report.at_s > report_max_age_s:
            unknown.append(candidate)
            continue
        known[candidate.replica] = Load(
            requests=max(
                report.running + report.waiting + candidate.unreported.requests, candidate.own.requests
            ),
            # A request on its way when the report was made is in neither of the two, but it is our own.
            backlog_tokens=max(
                report.backlog_tokens + candidate.unreported.prefill_tokens, candidate.own.prefill_tokens
            ),
            known=True,
        )
    if not unknown:
        return known
    mean_requests = sum(load.requests for load in known.values()) / max(len(known), 1)
    mean_tokens = sum(load.backlog_tokens for load in known.values()) / max(len(known), 1)
    assumed = {
        candidate.replica: Load(
            requests=max(mean_requests, candidate.own.requests),
            backlog_tokens=max(mean_tokens, candidate.own.prefill_tokens),
            known=False,
        )
        for candidate in unknown
    }
    return known | assumed


def score(candidate: Candidate, load: Load, prompt_tokens: int, cost: CostModel) -> Score:
    """Predicted seconds to the first token of a prompt that arrives now. `cost`: where the candidate has none."""
    cost = candidate.cost or cost
    requests, slots = load.requests, candidate.slots
    running = min(slots, requests)
    beyond = requests + 1 - slots if requests + 1 > slots else 0.0
    reusable = candidate.reusable_tokens
    if reusable is not None:
        reusable = min(max(reusable, 0), prompt_tokens)
    return Score(
        replica=candidate.replica,
        fixed_s=cost.fixed_s,
        queue_s=load.backlog_tokens * cost.prefill_s_per_token,
        slot_s=beyond * cost.slot_s,
        decode_s=running * cost.decode_s_per_running,
        prefill_s=(prompt_tokens - (reusable or 0)) * cost.prefill_s_per_token,
        reusable_tokens=reusable,
        cost=cost,
    )
