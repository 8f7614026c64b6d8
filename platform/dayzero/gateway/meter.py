"""Settlements and other facts of a gateway → its Prometheus metrics."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest

from dayzero.errors import DayzeroError
from dayzero.gateway.lifetime import Outcome, Settlement
from dayzero.telemetry import (
    AbortCause,
    CanaryOutcome,
    GatewayMetrics,
    InFlightGuard,
    RejectionCause,
    ReplicaState,
    RetryCause,
    Route,
    TruncationCause,
)

_RETRY_CAUSES = {
    "engine_dead": RetryCause.ENGINE_DEAD,
    "engine_draining": RetryCause.DRAINING,
    "engine_overloaded": RetryCause.OVERLOADED,
    "replica_gone": RetryCause.UNREACHABLE,
}
_TRUNCATION_CAUSES = {
    "engine_dead": TruncationCause.ENGINE_DEAD,
    "timeout": TruncationCause.DEADLINE,
    "replica_gone": TruncationCause.UNREACHABLE,
}
_REJECTION_CAUSES = {
    "request_too_large": RejectionCause.TOO_LARGE,
    "invalid_json": RejectionCause.NOT_JSON,
    "empty_body": RejectionCause.NOT_JSON,
}


class Meter:
    """One per gateway, on a registry of its own: nothing else of the process is in its answer."""

    def __init__(self, *, models: Iterable[str], pools: Iterable[str]) -> None:
        self._registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self._registry, models=models, pools=pools)

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
        counts = dict.fromkeys((ReplicaState.HEALTHY, ReplicaState.STARTING, ReplicaState.UNHEALTHY), 0)
        states = {"ok": ReplicaState.HEALTHY, "unknown": ReplicaState.STARTING}
        for health in healths:
            counts[states.get(health, ReplicaState.UNHEALTHY)] += 1
        self.metrics.replicas(pool, counts)

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
        if settlement.first_token_s is not None and model:
            metrics.first_token(model, settlement.first_token_s)
            metrics.tokens(
                model,
                prompt=settlement.prompt_tokens,
                completion=settlement.completion_tokens,
                cached=settlement.cached_tokens,
            )
        code = settlement.error_code or ""
        if settlement.truncated:
            metrics.truncated(_TRUNCATION_CAUSES.get(code, TruncationCause.OTHER))
        elif settlement.outcome is Outcome.REFUSED and code in _REJECTION_CAUSES:
            metrics.rejected(_REJECTION_CAUSES[code])
        if settlement.attempts:
            self._aborted(settlement)

    def _aborted(self, settlement: Settlement) -> None:
        causes = {Outcome.CLIENT_GONE: AbortCause.CLIENT_LEFT, Outcome.DEADLINE: AbortCause.DEADLINE}
        if settlement.stopped:
            self.metrics.aborted(AbortCause.STOP_STRING)
        elif settlement.outcome in causes:
            self.metrics.aborted(causes[settlement.outcome])


def _route(path: str) -> Route:
    return {"/v1/chat/completions": Route.CHAT_COMPLETIONS}.get(path, Route.OTHER)
