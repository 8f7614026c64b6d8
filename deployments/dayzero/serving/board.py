"""What Serve's router knows of a deployment's replicas, posted where the dispatcher of the same process can read it.

- The router posts from its own thread; a post replaces the whole picture at once, so that a reader sees one moment.
- `seen_s` is when a replica's stats last changed, which is how old a load figure is.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """`stats`: what the replica's `record_routing_stats` said; empty until it said something."""

    stats: Mapping[str, Any]
    seen_s: float


class Board:
    """One deployment's replicas, by name."""

    def __init__(self) -> None:
        self._reports: Mapping[str, ReplicaReport] = MappingProxyType({})

    def post(self, reports: Mapping[str, ReplicaReport]) -> None:
        kept = {
            name: old if (old := self._reports.get(name)) and old.stats == report.stats else report
            for name, report in reports.items()
        }
        self._reports = MappingProxyType(kept)

    def reports(self) -> Mapping[str, ReplicaReport]:
        return self._reports


class Boards:
    """All boards of this process, by deployment. Router and dispatcher are made by different hands and meet here."""

    def __init__(self) -> None:
        self._boards: dict[str, Board] = {}
        self._lock = threading.Lock()

    def of(self, deployment: str) -> Board:
        with self._lock:
            return self._boards.setdefault(deployment, Board())


BOARDS = Boards()
