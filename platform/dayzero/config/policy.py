"""The `policy` section: limits, retries and probes. It may be reloaded while the fleet serves."""

from typing import Annotated

from pydantic import Field

from dayzero.config.record import ByteCount, Count, Rate, Record, Seconds, Section, Share, Words


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


class Policy(Section):
    """Rules that may change while the fleet serves."""

    limits: Limits = Limits()
    retry: Retry = Retry()
    canary: Canary = Canary()
    drain_timeout_s: Seconds = 60.0
    """How long a replica that takes no new work may finish what it has."""
