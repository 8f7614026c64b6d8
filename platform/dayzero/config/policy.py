"""The `policy` section: limits, retries and probes. It may be reloaded while the fleet serves."""

from typing import Annotated

from pydantic import Field

from dayzero.config.record import (
    ByteCount,
    Count,
    Factor,
    Name,
    Rate,
    Record,
    Seconds,
    Section,
    Share,
    SmallSeconds,
    Words,
)


class Limits(Record):
    """What one request may be. Each is checked before the work it bounds."""

    max_body_bytes: ByteCount = 64 * 1024 * 1024
    """A larger body is refused with a 413, unread. A chat of a million tokens is 5 to 8 MB, pictures come on top."""
    body_timeout_s: Seconds = 60.0
    """For a request's body to arrive; then a 408."""
    request_timeout_s: Seconds = 600.0
    """From admission to the last token; then the request ends with an error."""


class Retry(Record):
    """Another replica is tried only before the first token, and within a budget: retries must not break more."""

    max_attempts: Annotated[int, Field(ge=1, le=10), Words("a whole number, 1 to 10")] = 3
    """Replicas tried for one request, the first included."""
    budget_share: Share = 0.2
    """Retries as a share of requests."""
    budget_floor_per_s: Rate = 1.0
    """Retries a second that are always allowed, so that a quiet fleet retries too."""


class Canary(Record):
    """The small request that proves a replica answers; a gateway is ready once one was answered."""

    period_s: Seconds = 10.0
    """Between two canaries of a replica that has answered nothing else."""
    timeout_s: Seconds = 30.0
    """A canary without an answer by then has failed."""
    max_tokens: Count = 1
    """Tokens it asks for."""


class Spill(Record):
    """How much sooner another region must give the first token, round trip included. Both margins count."""

    margin_s: SmallSeconds = 0.2
    """By so many seconds."""
    margin_share: Share = 0.25
    """By this share of what home needs."""
    max_age_s: Seconds = 3.0
    """What a region told of its load longer ago is not believed: it is asked only where nobody else can serve."""


class Regions(Record):
    """How gateways of several regions deal with one another."""

    probe_period_s: Seconds = 0.5
    """Between two probes of a region."""
    probe_timeout_s: Seconds = 0.5
    """A probe without an answer by then has failed."""
    down_after: Count = 2
    """Probes failed in a row after which a region is left out."""
    up_after: Count = 2
    """Probes answered in a row after which it is back."""
    spill: Spill = Spill()
    first_frame_s: Seconds = 5.0
    """For a region to take a request, beside the time a long prompt needs on the way; then another is tried."""
    heartbeat_s: Seconds = 1.0
    """Between signs of life in a stream to another region."""
    lost_after_s: Seconds = 3.0
    """A stream without a sign of life for so long is lost."""
    first_token_s: Seconds = 30.0
    """A region that lives and gives no token for so long is left for another, and never after a token."""
    first_token_factor: Factor = 4.0
    """Or for so many times the predicted seconds, where that is longer."""
    residency: Annotated[
        dict[Name, tuple[Name, ...]],
        Words("a mapping from tenant to a list of regions"),
    ] = Field(default_factory=dict)
    """Tenants whose requests only the named regions may process. Others may go to any."""


class Policy(Section):
    """Rules that may change while the fleet serves."""

    limits: Limits = Limits()
    retry: Retry = Retry()
    canary: Canary = Canary()
    regions: Regions = Regions()
    drain_timeout_s: Seconds = 60.0
    """How long a replica that takes no new work may finish what it has."""
