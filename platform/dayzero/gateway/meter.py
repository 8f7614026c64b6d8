"""Settlements and other facts of a gateway → its Prometheus metrics."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest

from dayzero.errors import DayzeroError
from dayzero.gateway.dispatch import replica_state
from dayzero.gateway.lifetime import Outcome, Settlement
from dayzero.telemetry import (
    AbortCause,
    CanaryOutcome,
    ForwardOutcome,
    GatewayMetrics,
    InFlightGuard,
    RegionWhy,
    RejectionCause,
    RetryCause,
    Route,
    TruncationCause,
)

_RETRY_CAUSES = {
    "engine_dead": RetryCause.ENGINE_DEAD,
    "engine_draining": RetryCause.DRAINING,
    "engine_overloaded": RetryCause.OVERLOADED,
    "replica_gone": RetryCause.UNREACHABLE,
    "region_lost": RetryCause.UNREACHABLE,
    "region_failed": RetryCause.OTHER,
    "region_refused": RetryCause.UNREACHABLE,
    "region_full": RetryCause.OVERLOADED,
}
_TRUNCATION_CAUSES = {
    "engine_dead": TruncationCause.ENGINE_DEAD,
    "timeout": TruncationCause.DEADLINE,
    "replica_gone": TruncationCause.UNREACHABLE,
    "region_lost": TruncationCause.UNREACHABLE,
}
_REJECTION_CAUSES = {
    "request_too_large": RejectionCause.TOO_LARGE,
    "invalid_json": RejectionCause.NOT_JSON,
    "empty_body": RejectionCause.NOT_JSON,
}


class Meter:
    """One per gateway, on a registry of its own: nothing else of the process is in its answer.

    `oddities`: those of the served models' decoders.
    """

    def __init__(
        self,
        *,
        models: Iterable[str],
        pools: Iterable[str],
        regions: Iterable[str] = (),
        oddities: Iterable[str] = (),
    ) -> None:
        self._registry = CollectorRegistry()
        self.metrics = GatewayMetrics(
            self._registry, models=models, pools=pools, regions=regions, oddities=oddities
        )

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)

    def enter(self, model: str) -> InFlightGuard:
        return self.metrics.enter(model)

    def tokens_between(self, model: str, gap_s: float, tokens: int) -> None:
        self.metrics.inter_token(model, gap_s, tokens)

    def retried(self, error: DayzeroError) -> None:
        self.metrics.retried(_RETRY_CAUSES.get(error.code or "", RetryCause.OTHER))

    def canary(self, pool: str, outcome: CanaryOutcome) -> None:
        self.metrics.canary(pool, outcome)

    def replicas(self, pool: str, healths: Iterable[str]) -> None:
        """`healths`: each replica's health as status pages show it."""
        self.metrics.replicas(pool, Counter(map(replica_state, healths)))

    def region_chosen(self, region: str, why: str) -> None:
        self.metrics.region_chosen(region, RegionWhy(why))

    def forwarded(self, region: str, outcome: ForwardOutcome) -> None:
        self.metrics.forwarded(region, outcome)

    def peers(self, peers: Iterable[tuple[str, bool, float | None]]) -> None:
        """Each other region: its name, whether it may be used, its round trip in seconds."""
        for region, up, round_trip_s in peers:
            self.metrics.peer(region, up=up, round_trip_s=round_trip_s)

    def settled(self, settlement: Settlement) -> None:
        """An observer of lifetimes."""
        metrics, model = self.metrics, settlement.model or None
        metrics.request(
            _route(settlement.route),
            model=model,
            status=200 if settlement.truncated else settlement.status,
            finish="error" if settlement.truncated else settlement.finish,
            seconds=settlement.total_s,
        )
        # What was generated for another region is counted where its client is.
        internal = _route(settlement.route) is Route.INTERNAL
        if settlement.first_token_s is not None and model and not internal:
            metrics.first_token(model, settlement.first_token_s)
            metrics.tokens(
                model,
                prompt=settlement.prompt_tokens,
                completion=settlement.completion_tokens,
                cached=settlement.cached_tokens,
            )
        if model:
            self._predicted(model, settlement)
            for oddity in settlement.degraded:
                metrics.degraded(model, oddity)
        code = settlement.error_code or ""
        if settlement.truncated:
            metrics.truncated(_TRUNCATION_CAUSES.get(code, TruncationCause.OTHER))
        elif settlement.outcome is Outcome.REFUSED and code in _REJECTION_CAUSES:
            metrics.rejected(_REJECTION_CAUSES[code])
        if settlement.attempts:
            self._aborted(settlement)

    def _predicted(self, model: str, settlement: Settlement) -> None:
        last = settlement.trail.last if settlement.trail is not None else None
        if last is None or last.cached_tokens is None or last.predicted_cached_tokens is None:
            return  # nothing to compare
        self.metrics.prediction(model, predicted=last.predicted_cached_tokens, cached=last.cached_tokens)

    def _aborted(self, settlement: Settlement) -> None:
        causes = {Outcome.CLIENT_GONE: AbortCause.CLIENT_LEFT, Outcome.DEADLINE: AbortCause.DEADLINE}
        if settlement.stopped:
            self.metrics.aborted(AbortCause.STOP_STRING)
        elif settlement.outcome in causes:
            self.metrics.aborted(causes[settlement.outcome])


def _route(path: str) -> Route:
    if path.startswith("/internal/"):
        return Route.INTERNAL
    return {"/v1/chat/completions": Route.CHAT_COMPLETIONS}.get(path, Route.OTHER)
