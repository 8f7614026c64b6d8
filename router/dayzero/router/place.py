"""`place`: which replicas a request should try, best first, and why.

- Pure and deterministic: the same request, view and time give the same placement, in any process and whatever the
  order of the candidates.
- Never names a replica that is unhealthy, draining, full or already tried for this request.
- Replicas that are equal within `TIE_S` are ordered by a hash of (session, replica), the request standing for its
  session where it names none: no randomness, and yet equal replicas share the load, a session stays where it was
  while nothing else decides, and several gateways do not all pick the same one.
- More cached tokens never rank a replica worse, nor does more load rank it better.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

from dayzero.router.errors import NoReplicaError
from dayzero.router.load import Candidate, CostModel, Load, ReplicaId, Score, loads, score
from dayzero.router.regions import RegionChoice

TIE_S = 0.001
"""Predictions closer than this do not differ: no coefficient is known better."""

_RETRY_AFTER_BROKEN_S = 5.0
_RETRY_AFTER_FULL_S = 1.0


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """`excluded`: replicas that already failed this request. `affinity`: what its session is called, if anything."""

    request_id: str
    prompt_tokens: int
    excluded: frozenset[ReplicaId] = frozenset()
    affinity: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The replicas of one model in this region, each once, and how to weigh them."""

    candidates: tuple[Candidate, ...]
    cost: CostModel = field(default_factory=CostModel)
    report_max_age_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Skipped:
    replica: ReplicaId
    why: str


@dataclass(frozen=True, slots=True)
class Placement:
    """`scores`: best first, one for each replica that may be tried. `reason`: one sentence for people.

    `choice`: of the region, where there are several; a peer's placement has no scores, they are made there.
    `predicted_s`: to the first token, round trip included; None where nobody predicted any.
    """

    scores: tuple[Score, ...]
    skipped: tuple[Skipped, ...]
    reason: str
    choice: RegionChoice | None = None
    predicted_s: float | None = None

    @property
    def predicted_cached_tokens(self) -> int | None:
        """Of the prompt, at the first choice; None where nobody knows."""
        return self.scores[0].reusable_tokens if self.scores else None

    @property
    def order(self) -> tuple[ReplicaId, ...]:
        return tuple(score.replica for score in self.scores)

    @property
    def ranks(self) -> tuple[tuple[ReplicaId], ...]:
        """Singletons: within a rank Ray Serve would choose by queue length, against our order."""
        return tuple((score.replica,) for score in self.scores)


def place(request: PlaceRequest, view: View, now_s: float) -> Placement:
    """Orders the candidates by predicted seconds to the first token. Raises NoReplicaError."""
    load_of = loads(view.candidates, now_s, view.report_max_age_s)
    able: list[Candidate] = []
    skipped: list[Skipped] = []
    for candidate in sorted(view.candidates, key=lambda c: c.replica):
        why = _why_not(candidate, request, load_of[candidate.replica])
        if why:
            skipped.append(Skipped(candidate.replica, why))
        else:
            able.append(candidate)
    if not able:
        raise _no_replica(skipped)
    scored = [score(c, load_of[c.replica], request.prompt_tokens, view.cost) for c in able]
    groups = _ties(scored, request.affinity or request.request_id)
    ordered = tuple(itertools.chain.from_iterable(groups))
    return Placement(
        scores=ordered,
        skipped=tuple(skipped),
        reason=_reason(
            request, ordered, load_of[ordered[0].replica], tied=len(groups[0]), passed=len(skipped)
        ),
        predicted_s=ordered[0].total_s,
    )


def _why_not(candidate: Candidate, request: PlaceRequest, load: Load) -> str | None:
    if candidate.replica in request.excluded:
        return "failed this request"
    if not candidate.healthy:
        return "unhealthy"
    if candidate.draining:
        return "draining"
    # An assumed load fills nobody up; what this gateway itself has there does.
    requests = load.requests if load.known else candidate.own.requests
    if requests >= candidate.max_requests:
        return "full"
    return None


def _ties(scored: Iterable[Score], session: str) -> list[list[Score]]:
    """Best first, in groups: a group is within TIE_S of its best, and ordered by hash."""
    groups: list[list[Score]] = []
    best_s = -math.inf
    for total_s, _, one in sorted((one.total_s, one.replica, one) for one in scored):
        if total_s - best_s <= TIE_S:
            groups[-1].append(one)
        else:
            groups.append([one])
            best_s = total_s
    seed = xxhash.xxh3_64_intdigest(session.encode("utf-8", "surrogatepass"))

    def spread(one: Score) -> tuple[int, ReplicaId]:
        return xxhash.xxh3_64_intdigest(one.replica.encode("utf-8", "surrogatepass"), seed), one.replica

    return [sorted(group, key=spread) if len(group) > 1 else group for group in groups]


def _reason(request: PlaceRequest, ordered: tuple[Score, ...], load: Load, *, tied: int, passed: int) -> str:
    best = ordered[0]
    parts = [f"{best.replica}: first token in {best.total_s:.3f} s"]
    if best.reusable_tokens:
        parts.append(f"{best.reusable_tokens} of {request.prompt_tokens} tokens cached")
    parts.append(f"{load.requests:.0f} requests and {load.backlog_tokens:.0f} tokens ahead")
    if not load.known:
        parts.append("assumed, its report is missing or old")
    if len(ordered) == 1:
        parts.append("the only one")
    elif tied > 1:
        chosen_by = "session" if request.affinity else "request"
        parts.append(f"as good as {ordered[1].replica}, chosen by the {chosen_by}'s hash")
    else:
        gap_s = ordered[1].total_s - best.total_s
        parts.append(f"{gap_s:.3f} s before {ordered[1].replica} by {_advantage(best, ordered[1])}")
    if passed:
        parts.append(f"{passed} passed over")
    return "; ".join(parts)


def _advantage(best: Score, other: Score) -> str:
    """What most of the lead over another comes from."""
    gains_s = {
        "a shorter queue": _queue_s(other) - _queue_s(best),
        "its cache": other.prefill_s - best.prefill_s,
        "its speed": other.fixed_s - best.fixed_s,
    }
    said = max(gains_s, key=lambda what: gains_s[what])
    if said == "its cache" and (best.reusable_tokens or 0) <= (other.reusable_tokens or 0):
        return "its speed"  # it computes faster
    return said


def _queue_s(scored: Score) -> float:
    return scored.queue_s + scored.slot_s + scored.decode_s


def _no_replica(skipped: Iterable[Skipped]) -> NoReplicaError:
    counts = Counter(skip.why for skip in skipped)
    if not counts:
        message = "No replica serves this model yet. Try again shortly."
    else:
        listed = ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))
        message = f"No replica can take the request now ({listed}). Try again shortly."
    retry_after_s = _RETRY_AFTER_FULL_S if counts["full"] else _RETRY_AFTER_BROKEN_S
    return NoReplicaError(message, retry_after_s=retry_after_s)
