"""Whether a peer region may be used: a state machine without clock, randomness or I/O.

- Two kinds of evidence. Liveness: probes, and requests that found nobody there; so many failures in a row mean down,
  and it takes so many answered probes in a row to come back. The circuit: requests that the region took and failed;
  probes say nothing of them, so only a request can close it.
- An open circuit lets one trial through after its time; a trial that fails doubles the time, up to a bound. The time
  is stretched by a jitter that the caller gives (0 to 1), so that gateways do not try in step.
- A refused key is a fault of the set-up: down at once, and asked again seldom.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Failures and successes in a row; seconds."""

    down_after: int = 2
    up_after: int = 2
    open_after: int = 3
    open_s: float = 1.0
    open_max_s: float = 30.0
    refused_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Health:
    """One peer. `why` stands for people; None where the peer is up."""

    up: bool = False
    why: str = "not heard of yet"
    failures: int = 0
    successes: int = 0
    ever_up: bool = False
    refused_until_s: float | None = None
    request_failures: int = 0
    open_until_s: float | None = None
    opened: int = 0
    """Times in a row that the circuit opened."""
    trying: bool = False
    """A trial is under way."""

    def why_not(self, now_s: float) -> str | None:
        """None: a request may be sent there."""
        if not self.up:
            return self.why
        if self.open_until_s is None:
            return None
        if self.trying:
            return "failing; one request is trying it"
        if now_s < self.open_until_s:
            return f"failing; tried again in {self.open_until_s - now_s:.1f} s"
        return None

    def probe_due(self, now_s: float) -> bool:
        return self.refused_until_s is None or now_s >= self.refused_until_s

    def sent(self) -> "Health":
        """A request goes there; behind an open circuit it is the trial."""
        return self if self.open_until_s is None else replace(self, trying=True)


def probe_answered(health: Health, policy: HealthPolicy) -> Health:
    successes = health.successes + 1
    up = health.up or not health.ever_up or successes >= policy.up_after
    why = "" if up else f"coming back: {successes} of {policy.up_after} probes answered"
    return replace(
        health,
        up=up,
        why=why,
        failures=0,
        successes=successes,
        ever_up=health.ever_up or up,
        refused_until_s=None,
    )


def probe_failed(health: Health, policy: HealthPolicy, why: str) -> Health:
    """Also for a request that found nobody there."""
    failures = health.failures + 1
    down = failures >= policy.down_after or not health.up
    return replace(
        health, failures=failures, successes=0, up=not down, why=f"down: {why}" if down else health.why
    )


def refused(health: Health, policy: HealthPolicy, now_s: float, jitter: float) -> Health:
    return replace(
        health,
        up=False,
        why="it refuses this gateway's peer key; give both regions the same one",
        successes=0,
        refused_until_s=now_s + policy.refused_s * (1 + jitter),
        trying=False,
    )


def request_answered(health: Health) -> Health:
    """The region gave a token, or a refusal that is the request's own fault."""
    return replace(health, request_failures=0, open_until_s=None, opened=0, trying=False)


def request_failed(health: Health, policy: HealthPolicy, now_s: float, jitter: float) -> Health:
    """The region took a request and failed it."""
    failures = health.request_failures + 1
    if health.open_until_s is not None and not health.trying:
        return health  # sent before the circuit opened: it says nothing new
    if not health.trying and failures < policy.open_after:
        return replace(health, request_failures=failures)
    rest_s = min(policy.open_max_s, policy.open_s * 2.0 ** min(health.opened, 16))
    return replace(
        health,
        request_failures=failures,
        open_until_s=now_s + rest_s * (1 + jitter),
        opened=health.opened + 1,
        trying=False,
    )


def request_given_up(health: Health) -> Health:
    """It ended without saying anything of the region: its client left, or its time was over."""
    return replace(health, trying=False)
