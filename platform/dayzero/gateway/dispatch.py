"""The Dispatcher seam: how a placed request reaches an engine and how its deltas come back.

- `place` decides on the dispatcher's own view of its replicas with the router's pure `place`; `dispatch` carries it out.
- A dispatch's iterator raises the engine's own errors; a replica that vanished is EngineDeadError.
- Closing the iterator aborts the engine's work and gives back what the dispatch had reserved.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.router.place import Placement
from dayzero.telemetry import ReplicaState


def replica_state(health: str) -> ReplicaState:
    """What a replica's `health` in `Dispatcher.replicas` comes to; any other sentence says what ails it."""
    states = {"ok": ReplicaState.HEALTHY, "unknown": ReplicaState.STARTING}
    return states.get(health, ReplicaState.UNHEALTHY)


class Dispatch(Protocol):
    """One attempt."""

    @property
    def replica(self) -> str | None:
        """Who took it; None until somebody did."""
        ...

    def deltas(self) -> AsyncGenerator[TokenDelta, None]: ...


class Dispatcher(Protocol):
    def place(self, request: EngineRequest, excluded: frozenset[str]) -> Placement:
        """Raises NoReplicaError if nobody may take it. `excluded`: replicas that already failed this request."""
        ...

    def unit_sizes(self) -> frozenset[int]:
        """Units of the chains that `place` asks with: a request that carries its chain is hashed once."""
        ...

    def dispatch(self, request: EngineRequest, placement: Placement) -> Dispatch:
        """`request.expected_cached_tokens` is what the placement believes to be cached where it goes."""
        ...

    def replicas(self) -> list[dict[str, Any]]:
        """What is known of each replica, for status pages. `health`: "ok", "unknown", or what ails it."""
        ...
