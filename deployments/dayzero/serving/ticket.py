"""What travels with a request through Serve: the order of replicas, and who took it."""

from dataclasses import dataclass

from dayzero.errors import DayzeroError


class StalePlacementError(DayzeroError):
    """Raised when no replica of the order exists any more: the request is placed again."""

    status = 503
    default_code = "replica_gone"
    retryable = True


@dataclass(slots=True)
class Ticket:
    """`order`: replica names, best first. `replica` is filled in by the router, in the sender's process."""

    order: tuple[str, ...]
    replica: str | None = None

    def stale(self) -> StalePlacementError:
        return StalePlacementError("No replica that this request was placed on is there any more.")
