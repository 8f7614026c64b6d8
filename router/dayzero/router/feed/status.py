"""What a follower tells of itself, for status pages and metrics.

- Replicas speak every second: what is known of one that was not heard for `STALE_S` is not called exact, and a feed
  in which none was heard for so long is not called connected, whatever the store answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

STALE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaFeed:
    """`silent_s`: since its last message. `exact`: its residency is what it published up to `sequence`, just now."""

    incarnation: str
    exact: bool
    sequence: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """Counts are since the start. `lag_s`: of the latest batch, from its first change to its application.

    `connected`: the store answers, and of the replicas that are known at least one speaks.
    """

    connected: bool
    lag_s: float | None
    messages: int
    skipped: int
    gaps: int
    snapshots: int
    asked: int
    failures: int
    dropped: int
    replicas: Mapping[str, ReplicaFeed]


def is_heard(replicas: Mapping[str, ReplicaFeed]) -> bool:
    """Whether the feed carries anything. Where there are no replicas, nothing says that it does not."""
    return not replicas or any(one.silent_s <= STALE_S for one in replicas.values())
