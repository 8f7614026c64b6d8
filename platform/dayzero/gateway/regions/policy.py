"""How a gateway deals with other regions, in numbers. The fleet file's `policy.regions` fills it."""

from dataclasses import dataclass, field

from dayzero.gateway.regions.health import HealthPolicy
from dayzero.router.regions import SpillPolicy

_UPLOAD_BYTES_PER_S = 1_000_000
"""A prompt of a million tokens is 4 MB; a slower line than this is no line between regions."""


@dataclass(frozen=True, slots=True)
class RegionsPolicy:
    """Seconds, and counts. Defaults find a dead region within 2 s."""

    probe_period_s: float = 0.5
    probe_timeout_s: float = 0.5
    digest_period_s: float = 2.0
    """Between two readings of a digest that changed."""
    warm_connections: int = 2
    """Kept open to each peer, so that a request finds one."""
    connect_s: float = 1.0
    first_frame_s: float = 5.0
    """For the region to say that it took a request, beside the time that a long prompt needs on the way."""
    heartbeat_s: float = 1.0
    """Between the frames that a region sends while it has nothing to say."""
    lost_after_s: float = 3.0
    """Without any frame: the region is lost."""
    first_token_s: float = 30.0
    first_token_factor: float = 4.0
    spill: SpillPolicy = field(default_factory=SpillPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)

    def first_token_within_s(self, predicted_s: float | None) -> float:
        """After that a region that only lives, and says no token, has failed the request."""
        return max(self.first_token_s, self.first_token_factor * (predicted_s or 0.0))

    def taken_within_s(self, body_bytes: int) -> float:
        return self.first_frame_s + body_bytes / _UPLOAD_BYTES_PER_S
