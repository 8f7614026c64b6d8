"""Where a request goes: pure decisions, no ray and no HTTP."""

from dayzero.router.errors import NoReplicaError
from dayzero.router.fit import Fit, Fits, Sample, fitted
from dayzero.router.inflight import InFlight, Reservation
from dayzero.router.load import Candidate, CostModel, OwnLoad, ReplicaId, Report, Score
from dayzero.router.place import Placement, PlaceRequest, Skipped, View, place

__all__ = [
    "Candidate",
    "CostModel",
    "Fit",
    "Fits",
    "InFlight",
    "NoReplicaError",
    "OwnLoad",
    "PlaceRequest",
    "Placement",
    "ReplicaId",
    "Report",
    "Reservation",
    "Sample",
    "Score",
    "Skipped",
    "View",
    "fitted",
    "place",
]
