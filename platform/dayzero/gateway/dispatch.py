"""The Dispatcher seam: how a placed request reaches an engine and how its deltas come back.

- `place` decides on the dispatcher's own view of its replicas with the router's pure `place`; `dispatch` carries it out.
- A dispatch's iterator raises the engine's own errors; a replica that vanished is EngineDeadError.
- Closing the iterator aborts the engine's work and gives back what the dispatch had reserved.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.router.place import Placement


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

    def dispatch(self, request: EngineRequest, placement: Placement) -> Dispatch: ...

    def replicas(self) -> list[dict[str, Any]]:
        """What is known of each replica, for status pages."""
        ...
