"""`place`: which replicas a request should try, best first, and why.

- Pure and deterministic: the same request, view and time give the same placement, in any process and whatever the
  order of the candidates.
- Never names a replica that is unhealthy, draining, full or already tried for this request.
- Replicas that are equal within `TIE_S` are ordered by a hash of (request, replica): no randomness, and yet equal
  replicas share the load, and several gateways do not all pick the same one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

from dayzero.router.errors import NoReplicaError
from dayzero.router.load import Candidate, CostModel, Load, ReplicaId, Score, loads, score

TIE_S = 0.001
"""Predictions closer than this do not differ: no coefficient is known better."""

_RETRY_AFTER_BROKEN_S = 5.0
_RETRY_AFTER_FULL_S = 1.0


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """`excluded`: replicas that already failed this request."""

    request_id: str
    prompt_tokens: int
    excluded: frozenset[ReplicaId] = frozenset()


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
    """`scores`: best first, one for each replica that may be tried. `reason`: one sentence for people."""

    scores: tuple[Score, ...]
    skipped: tuple[Skipped, ...]
    reason: str

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
    ordered = tuple(sorted(scored, key=lambda s: _sort_key(s, request.request_id)))
    return Placement(ordered, tuple(skipped), _reason(ordered, load_of[ordered[0].replica], len(skipped)))


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


def _sort_key(scored: Score, request_id: str) -> tuple[int, int, ReplicaId]:
    return round(scored.total_s / TIE_S), _spread(request_id, scored.replica), scored.replica


def _spread(request_id: str, replica: ReplicaId) -> int:
    text = f"{len(request_id)}:{request_id}{replica}"
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _reason(ordered: tuple[Score, ...], load: Load, skipped: int) -> str:
    best = ordered[0]
    parts = [f"{best.replica}: first token in {best.total_s:.3f} s"]
    parts.append(f"{load.requests:.0f} requests and {load.backlog_tokens:.0f} tokens ahead")
    if not load.known:
        parts.append("assumed, its report is missing or old")
    if len(ordered) == 1:
        parts.append("the only one")
    elif round(best.total_s / TIE_S) == round(ordered[1].total_s / TIE_S):
        parts.append(f"as good as {ordered[1].replica}")
    else:
        parts.append(f"{ordered[1].total_s - best.total_s:.3f} s before {ordered[1].replica}")
    if skipped:
        parts.append(f"{skipped} passed over")
    return "; ".join(parts)


def _no_replica(skipped: Iterable[Skipped]) -> NoReplicaError:
    counts = Counter(skip.why for skip in skipped)
    if not counts:
        message = "No replica serves this model yet. Try again shortly."
    else:
        listed = ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))
        message = f"No replica can take the request now ({listed}). Try again shortly."
    retry_after_s = _RETRY_AFTER_FULL_S if counts["full"] else _RETRY_AFTER_BROKEN_S
    return NoReplicaError(message, retry_after_s=retry_after_s)
