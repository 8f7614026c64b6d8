"""`choose`: whether a request stays in its home region or goes to a peer, and why.

- Pure, deterministic and total: the same inputs give the same choice, in any process and whatever the order of the
  peers; where nobody can serve, the choice says so (`target` None) and raises nothing.
- Home first. A peer takes a request only when its whole predicted time to the first token, round trip included, is
  clearly better (by `margin_s` and by `margin_share`), or when home cannot serve it at all.
- Never names a peer that is down, full, forbidden or already tried for this request.
- Stale is not dead: a gateway that stood still knows of nobody's load, and its peers may be well. One that told of its
  load too long ago, and is not down, comes after all others: it is named only where nobody else can serve. So does one
  that is down for nothing but not answering in time: a region at its limit is slow, and slow is not dead.
- Peers that are equal within `TIE_S` are ordered by a hash of (request, region), as replicas are in `place`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import xxhash

from dayzero.router.errors import NoReplicaError
from dayzero.router.load import OwnLoad

if TYPE_CHECKING:  # a Placement holds a RegionChoice, so at run time the import goes the other way
    from dayzero.router.place import Placement

TIE_S = 0.001
_NONE = OwnLoad()


class Why(StrEnum):
    """Why a request goes where it goes."""

    HOME = "home"
    """No peer is clearly better."""
    FASTER = "faster"
    """A peer is clearly better."""
    HOME_UNABLE = "home_unable"
    """Every replica at home is full, unhealthy, or failed this request."""
    HOME_FORBIDDEN = "home_forbidden"
    """The tenant's data may not be processed at home."""
    NO_HOME = "no_home"
    """This gateway has no replicas."""
    NOBODY = "nobody"
    """No region can take it now."""


@dataclass(frozen=True, slots=True)
class SpillPolicy:
    """How much better a peer must be, in seconds and as a share of home's prediction; both count.

    `max_age_s`: what a peer said of its load longer ago is not believed; it is then the last resort.
    """

    margin_s: float = 0.2
    margin_share: float = 0.25
    max_age_s: float = 3.0


@dataclass(frozen=True, slots=True)
class PeerView:
    """One peer region as this gateway sees it, for one model and one prompt. Seconds are on this gateway's clock.

    `wait_s`: at its best replica, for a prompt of no tokens. `reusable_tokens`: what its digest says it has of this
    prompt. `unreported`: what this gateway sent there since it last told of its load.
    """

    region: str
    why_down: str | None = None
    """None: it is up."""
    silent: bool = False
    """It is down only because it did not answer in time: dead, or slow."""
    at_s: float | None = None
    """When it last told of its load."""
    serves: bool = True
    full: bool = False
    replicas: int = 1
    round_trip_s: float = 0.0
    wait_s: float = 0.0
    prefill_s_per_token: float = 0.0
    reusable_tokens: int = 0
    unreported: OwnLoad = _NONE


@dataclass(frozen=True, slots=True)
class RegionRequest:
    """`home`: this gateway's own region. `tried`: regions that failed this request. `allowed`: None allows all."""

    request_id: str
    home: str
    prompt_tokens: int
    tried: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RegionScore:
    """Predicted seconds to the first token in a region, in parts."""

    region: str
    round_trip_s: float
    wait_s: float
    prefill_s: float

    @property
    def total_s(self) -> float:
        return self.round_trip_s + self.wait_s + self.prefill_s


@dataclass(frozen=True, slots=True)
class SkippedRegion:
    region: str
    why: str


@dataclass(frozen=True, slots=True)
class RegionChoice:
    """`target` None: nobody can take it. `scores`: of every region that could, best first."""

    home: str
    target: str | None
    why: Why
    scores: tuple[RegionScore, ...]
    skipped: tuple[SkippedRegion, ...]
    reason: str
    """One sentence for people."""
    avoid: tuple[str, ...] = ()
    """Replicas of the target, a peer, that failed this request."""

    @property
    def at_home(self) -> bool:
        return self.target == self.home

    @property
    def predicted_s(self) -> float | None:
        """Of the target."""
        return next((score.total_s for score in self.scores if score.region == self.target), None)


def choose(  # noqa: PLR0917 the observation has four parts
    home: "Placement | None",
    home_error: NoReplicaError | None,
    peers: Sequence[PeerView],
    request: RegionRequest,
    policy: SpillPolicy,
    now_s: float,
) -> RegionChoice:
    """`home`: where `place` would put it here; None with the reason in `home_error`, or with none: no replicas here."""
    skipped: list[SkippedRegion] = []
    able: list[RegionScore] = []
    stale: list[PeerView] = []
    for peer in sorted(peers, key=lambda p: p.region):
        old = peer.silent or _is_stale(peer, policy, now_s)
        why_not = _why_not(peer, request, stale=old)
        if why_not:
            skipped.append(SkippedRegion(peer.region, why_not))
        elif old:
            stale.append(peer)
        else:
            able.append(_score(peer, request.prompt_tokens))
    ranked = sorted(able, key=lambda s: _sort_key(s, request.request_id))

    forbidden = request.allowed is not None and request.home not in request.allowed
    if stale and not ranked and (home is None or forbidden):
        ranked = _by_old_words(stale, request)
        last_resort = _age_in_words(next(p for p in stale if p.region == ranked[0].region), now_s)
    else:
        skipped += (SkippedRegion(peer.region, peer.why_down or "stale") for peer in stale)
        last_resort = ""
    if home is None or forbidden:
        skipped.append(SkippedRegion(request.home, _home_why(home_error, forbidden=forbidden)))
        why = _without_home(home_error, forbidden=forbidden)
        return _elsewhere(ranked, tuple(skipped), why, request, last_resort)

    here = home_score(request.home, home)
    scores = tuple(sorted((here, *ranked), key=lambda s: s.total_s))
    best = ranked[0] if ranked else None
    if best is None or not _clearly_better(best.total_s, here.total_s, policy):
        reason = f"{here.region} is home: first token in {here.total_s:.3f} s"
        if best is not None:
            reason += f"; {best.region} in {best.total_s:.3f} s is not clearly better"
        return RegionChoice(request.home, request.home, Why.HOME, scores, tuple(skipped), reason)
    reason = f"{_words(best)}, clearly before {here.region} ({here.total_s:.3f} s)"
    return RegionChoice(request.home, best.region, Why.FASTER, scores, tuple(skipped), reason)


def home_score(region: str, home: "Placement") -> RegionScore:
    """A placement at home in the words of regions."""
    best = home.scores[0]
    total_s = best.total_s if home.predicted_s is None else home.predicted_s
    prefill_s = min(best.prefill_s, total_s)
    return RegionScore(region, 0.0, total_s - prefill_s, prefill_s)


def _is_stale(peer: PeerView, policy: SpillPolicy, now_s: float) -> bool:
    return peer.at_s is None or now_s - peer.at_s > policy.max_age_s


def _by_old_words(stale: Sequence[PeerView], request: RegionRequest) -> list[RegionScore]:
    """Best first by what they said last; those that were full then come last, since it may be so no longer."""
    full = {peer.region for peer in stale if peer.full}
    scores = (_score(peer, request.prompt_tokens) for peer in stale)
    return sorted(scores, key=lambda s: (s.region in full, *_sort_key(s, request.request_id)))


def _age_in_words(peer: PeerView, now_s: float) -> str:
    if peer.why_down is not None:
        return f"nobody else can serve, and it may only be slow ({peer.why_down})"
    age = "never told of its load" if peer.at_s is None else f"told of its load {now_s - peer.at_s:.1f} s ago"
    return f"nobody else can serve, and it is not down though it {age}"


def _why_not(peer: PeerView, request: RegionRequest, *, stale: bool) -> str | None:  # noqa: PLR0911
    if peer.region == request.home:
        return "is this region"
    if request.allowed is not None and peer.region not in request.allowed:
        return "forbidden for this tenant"
    if peer.region in request.tried:
        return "failed this request"
    if peer.why_down is not None and not peer.silent:
        return peer.why_down
    if not peer.serves:
        return "does not serve this model"
    if peer.full and not stale:
        return "full"
    return None


def _score(peer: PeerView, prompt_tokens: int) -> RegionScore:
    uncached = max(0, prompt_tokens - max(0, peer.reusable_tokens))
    # What was sent since its report waits there too, spread over its replicas.
    sent_s = peer.unreported.prefill_tokens * peer.prefill_s_per_token / max(1, peer.replicas)
    return RegionScore(
        region=peer.region,
        round_trip_s=peer.round_trip_s,
        wait_s=peer.wait_s + sent_s,
        prefill_s=uncached * peer.prefill_s_per_token,
    )


def _clearly_better(peer_s: float, home_s: float, policy: SpillPolicy) -> bool:
    return home_s - peer_s > max(policy.margin_s, policy.margin_share * home_s)


def _sort_key(scored: RegionScore, request_id: str) -> tuple[int, int, str]:
    text = f"{len(request_id)}:{request_id}{scored.region}"
    spread = xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
    return round(scored.total_s / TIE_S), spread, scored.region


def _without_home(error: NoReplicaError | None, *, forbidden: bool) -> Why:
    if forbidden:
        return Why.HOME_FORBIDDEN
    return Why.NO_HOME if error is None else Why.HOME_UNABLE


def _home_why(error: NoReplicaError | None, *, forbidden: bool) -> str:
    if forbidden:
        return "forbidden for this tenant"
    return "has no replicas" if error is None else error.message


def _elsewhere(
    ranked: Sequence[RegionScore],
    skipped: tuple[SkippedRegion, ...],
    why: Why,
    request: RegionRequest,
    last_resort: str,
) -> RegionChoice:
    home_why = skipped[-1].why.rstrip(".")
    if not ranked:
        others = "; ".join(f"{skip.region}: {skip.why}" for skip in skipped[:-1]) or "there are no peers"
        reason = f"no region can take it: {request.home}: {home_why}; {others}"
        return RegionChoice(request.home, None, Why.NOBODY, (), skipped, reason)
    reason = f"{_words(ranked[0])}; {request.home}: {home_why}"
    if last_resort:
        reason += f"; {last_resort}"
    return RegionChoice(request.home, ranked[0].region, why, tuple(ranked), skipped, reason)


def _words(scored: RegionScore) -> str:
    return f"{scored.region}: first token in {scored.total_s:.3f} s ({scored.round_trip_s:.3f} s of it on the way)"
