"""OpenTelemetry spans and Prometheus metrics, by name and unit."""

from dayzero.telemetry.catalogue import (
    AbortCause,
    CanaryOutcome,
    ForwardOutcome,
    RegionWhy,
    RejectionCause,
    ReplicaState,
    RetryCause,
    Route,
    TruncationCause,
)
from dayzero.telemetry.errors import TelemetrySetupError
from dayzero.telemetry.export import DropCause, traces_endpoint
from dayzero.telemetry.metrics import GatewayMetrics, InFlightGuard
from dayzero.telemetry.names import Attribute, SpanEvent, SpanName
from dayzero.telemetry.tracing import Roots, Span, Tracing, extract, inject, setup

__all__ = [
    "AbortCause",
    "Attribute",
    "CanaryOutcome",
    "DropCause",
    "ForwardOutcome",
    "GatewayMetrics",
    "InFlightGuard",
    "RegionWhy",
    "RejectionCause",
    "ReplicaState",
    "RetryCause",
    "Roots",
    "Route",
    "Span",
    "SpanEvent",
    "SpanName",
    "TelemetrySetupError",
    "Tracing",
    "TruncationCause",
    "extract",
    "inject",
    "setup",
    "traces_endpoint",
]
