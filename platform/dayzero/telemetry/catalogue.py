"""Every metric of a gateway as data: name, unit, labels, buckets. The reference page is made of it.

- Labels come from an allow-list of small, closed sets. There is none for tenants, requests, keys or replicas: a
  thousand restarts make no new series.
- Every metric has a label, so that it has no sample before it has data: absent, not zero.
"""

from dataclasses import dataclass
from enum import StrEnum


class Route(StrEnum):
    CHAT_COMPLETIONS = "chat_completions"
    MODELS = "models"
    INTERNAL = "internal"
    OTHER = "other"


class RetryCause(StrEnum):
    ENGINE_DEAD = "engine_dead"
    DRAINING = "draining"
    OVERLOADED = "overloaded"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    OTHER = "other"


class TruncationCause(StrEnum):
    """Why a stream ended with an error event after its first token."""

    ENGINE_DEAD = "engine_dead"
    DEADLINE = "deadline"
    UNREACHABLE = "unreachable"
    OTHER = "other"


class AbortCause(StrEnum):
    CLIENT_LEFT = "client_left"
    DEADLINE = "deadline"
    STOP_STRING = "stop_string"
    SHUTDOWN = "shutdown"
    OTHER = "other"


class RejectionCause(StrEnum):
    """Why a body was refused before any work."""

    TOO_LARGE = "too_large"
    TOO_DEEP = "too_deep"
    NOT_JSON = "not_json"
    ENCODING = "encoding"
    OTHER = "other"


class CanaryOutcome(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OTHER = "other"


class ReplicaState(StrEnum):
    HEALTHY = "healthy"
    STARTING = "starting"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"
    OTHER = "other"


class Knowledge(StrEnum):
    """How well a replica's cache is known."""

    EXACT = "exact"
    VOID = "void"


class RegionWhy(StrEnum):
    """Why a request goes to a region; the words of `router.regions`."""

    HOME = "home"
    FASTER = "faster"
    HOME_UNABLE = "home_unable"
    HOME_FORBIDDEN = "home_forbidden"
    NO_HOME = "no_home"


class ForwardOutcome(StrEnum):
    """What became of a request that was sent to another region."""

    ANSWERED = "answered"
    FULL = "full"
    REFUSED = "refused"
    """Our peer key."""
    UNREACHED = "unreached"
    """Nobody was there, or nobody said a word."""
    LOST = "lost"
    """The stream was cut, went silent, ended without a finish, or was not ours."""
    NO_TOKEN = "no_token"  # noqa: S105 a name
    """The region lived and gave no token in its time."""
    FAILED = "failed"
    """An error from there, as data, or an answer that was broken off there before its first token."""
    INVALID = "invalid"
    """The request's own fault."""
    GIVEN_UP = "given_up"
    """Closed from this side."""


OTHER = "other"
"""What a value outside a label's set becomes."""

NONE = "none"
"""Where there is nothing to name: no model was found, no answer finished."""

LABELS: dict[str, tuple[str, ...] | None] = {
    "route": tuple(Route),
    "status_class": ("1xx", "2xx", "3xx", "4xx", "5xx"),
    "finish": ("stop", "length", "tool_calls", "abort", "error"),
    "cause": tuple(
        {*RetryCause, *TruncationCause, *AbortCause, *RejectionCause, "queue_full", "export_failed"}
    ),
    "outcome": tuple({*CanaryOutcome, *ForwardOutcome}),
    "why": tuple(RegionWhy),
    "state": tuple(ReplicaState),
    "known": tuple(Knowledge),
    "model": None,
    "pool": None,
    "region": None,
    "oddity": None,
}
"""Label → the values it may have; None: the names that the fleet file gives or, of an oddity, the decoders."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)  # one object a metric: compared and hashed by identity
class Metric:
    """`name` ends in its unit (and `_total` for counters)."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    what: str
    buckets: tuple[float, ...] = ()
    why_buckets: str = ""


REQUESTS = Metric(
    "dayzero_gateway_requests_total",
    Kind.COUNTER,
    ("route", "model", "status_class", "finish"),
    "Requests that ended, by the HTTP status sent and why the answer ended. A stream that fails after its first"
    " token is a 2xx with finish error.",
)
REQUEST_SECONDS = Metric(
    "dayzero_gateway_request_seconds",
    Kind.HISTOGRAM,
    ("route", "model"),
    "From the first byte of a request to the last of its answer.",
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600),
    "From an error at once (10 ms) to the request timeout (600 s), each about twice the one before.",
)
FIRST_TOKEN_SECONDS = Metric(
    "dayzero_gateway_first_token_seconds",
    Kind.HISTOGRAM,
    ("model",),
    "From the first byte of a request to its first token.",
    (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 5, 8, 12, 20, 35, 60, 120),
    "A prefix hit is around 0.1 s; without one Kimi K3 takes about 1 s for 8k tokens, 15 s for 131k, 34 s for 262k."
    " Steps of 1.25 to 1.5 where objectives lie (0.4 to 3 s), so that a percentile read from them is near.",
)
INTER_TOKEN_SECONDS = Metric(
    "dayzero_gateway_inter_token_seconds",
    Kind.HISTOGRAM,
    ("model",),
    "Between two chunks of an answer, divided by the tokens of the later one.",
    (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.5, 1, 5),
    "3 ms with speculation, 9 ms without at batch 1, 40 to 80 ms at batches of 16 to 64; above 0.2 s a stall.",
)
PROMPT_TOKENS = Metric(
    "dayzero_gateway_prompt_tokens_total",
    Kind.COUNTER,
    ("model",),
    "Prompt tokens of requests that an engine answered, cached ones included.",
)
CACHED_TOKENS = Metric(
    "dayzero_gateway_cached_tokens_total",
    Kind.COUNTER,
    ("model",),
    "Those of the prompt tokens that the engine found in its cache.",
)
PREDICTED_CACHED_TOKENS = Metric(
    "dayzero_gateway_predicted_cached_tokens_total",
    Kind.COUNTER,
    ("model",),
    "Prompt tokens that the router believed to be cached where it sent a request; counted once the engine reported.",
)
PHANTOM_CACHED_TOKENS = Metric(
    "dayzero_gateway_phantom_cached_tokens_total",
    Kind.COUNTER,
    ("model",),
    "Those of the predicted tokens that the engine did not find: the index is ahead of the caches.",
)
MISSED_CACHED_TOKENS = Metric(
    "dayzero_gateway_missed_cached_tokens_total",
    Kind.COUNTER,
    ("model",),
    "Tokens that the engine found beyond those predicted: the index is behind the caches.",
)
COMPLETION_TOKENS = Metric(
    "dayzero_gateway_completion_tokens_total",
    Kind.COUNTER,
    ("model",),
    "Tokens generated, of aborted answers too.",
)
DEGRADED = Metric(
    "dayzero_gateway_degraded_answers_total",
    Kind.COUNTER,
    ("model", "oddity"),
    "Answers with an oddity that the decoder mended by a written rule; an answer with two counts once under each.",
)
IN_FLIGHT = Metric(
    "dayzero_gateway_in_flight_requests",
    Kind.GAUGE,
    ("model",),
    "Requests between admission and settlement.",
)
RETRIES = Metric(
    "dayzero_gateway_retries_total",
    Kind.COUNTER,
    ("cause",),
    "Further attempts at another replica, by what ended the attempt before.",
)
TRUNCATED = Metric(
    "dayzero_gateway_truncated_streams_total",
    Kind.COUNTER,
    ("cause",),
    "Streams that ended with an error event after their first token.",
)
ABORTED = Metric(
    "dayzero_gateway_aborted_requests_total",
    Kind.COUNTER,
    ("cause",),
    "Requests whose work in the engine was stopped by us.",
)
REJECTED = Metric(
    "dayzero_gateway_rejected_bodies_total",
    Kind.COUNTER,
    ("cause",),
    "Bodies refused before any work.",
)
CANARIES = Metric(
    "dayzero_gateway_canaries_total",
    Kind.COUNTER,
    ("pool", "outcome"),
    "Canary requests, by outcome.",
)
REPLICAS = Metric(
    "dayzero_gateway_replicas",
    Kind.GAUGE,
    ("pool", "state"),
    "Replicas as this gateway sees them.",
)
REPLICAS_WITHOUT_AFFINITY = Metric(
    "dayzero_gateway_no_affinity_replicas",
    Kind.GAUGE,
    ("pool",),
    "Replicas whose engine's events did not fit at their start: they get no request for what they have cached.",
)
FEED_CONNECTED = Metric(
    "dayzero_gateway_feed_up",
    Kind.GAUGE,
    ("region",),
    "1 while this gateway hears its region's feed of what replicas cache, 0 while the store is away.",
)
FEED_LAG = Metric(
    "dayzero_gateway_feed_lag_seconds",
    Kind.GAUGE,
    ("region",),
    "From a change in a replica's cache to its being known here, of the latest batch.",
)
FOLLOWED_REPLICAS = Metric(
    "dayzero_gateway_followed_replicas",
    Kind.GAUGE,
    ("region", "known"),
    "Replicas in the feed: known exactly, or void until their snapshot comes.",
)
INDEXED_BLOCKS = Metric(
    "dayzero_gateway_indexed_blocks",
    Kind.GAUGE,
    ("model",),
    "Cached blocks and states that are known here, of all replicas.",
)
FRONTEND_CACHE = Metric(
    "dayzero_gateway_frontend_cache_bytes",
    Kind.GAUGE,
    ("model",),
    "Memory that earlier prompts hold in this gateway, so that a conversation costs only its new part.",
)
FRONTEND_CACHE_BOUND = Metric(
    "dayzero_gateway_frontend_cache_bound_bytes",
    Kind.GAUGE,
    ("model",),
    "The most memory that earlier prompts may hold: the frontend's option `cache_bytes`.",
)
REGION_CHOICES = Metric(
    "dayzero_gateway_region_choices_total",
    Kind.COUNTER,
    ("region", "why"),
    "Placements by the region that the request was sent to, retries included, and why that one.",
)
FORWARDED = Metric(
    "dayzero_gateway_forwarded_requests_total",
    Kind.COUNTER,
    ("region", "outcome"),
    "Requests sent to another region, by what became of them.",
)
PEER_UP = Metric(
    "dayzero_gateway_peer_up",
    Kind.GAUGE,
    ("region",),
    "1 where requests may be sent to another region, 0 where it is left out.",
)
PEER_ROUND_TRIP = Metric(
    "dayzero_gateway_peer_round_trip_seconds",
    Kind.GAUGE,
    ("region",),
    "To another region's gateway and back over an open connection, the shortest of the latest probes.",
)
DROPPED_SPANS = Metric(
    "dayzero_gateway_dropped_spans_total",
    Kind.COUNTER,
    ("cause",),
    "Spans that were not exported.",
)

METRICS = (
    REQUESTS,
    REQUEST_SECONDS,
    FIRST_TOKEN_SECONDS,
    INTER_TOKEN_SECONDS,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    PREDICTED_CACHED_TOKENS,
    PHANTOM_CACHED_TOKENS,
    MISSED_CACHED_TOKENS,
    COMPLETION_TOKENS,
    DEGRADED,
    IN_FLIGHT,
    RETRIES,
    TRUNCATED,
    ABORTED,
    REJECTED,
    CANARIES,
    REPLICAS,
    REPLICAS_WITHOUT_AFFINITY,
    FEED_CONNECTED,
    FEED_LAG,
    FOLLOWED_REPLICAS,
    INDEXED_BLOCKS,
    FRONTEND_CACHE,
    FRONTEND_CACHE_BOUND,
    REGION_CHOICES,
    FORWARDED,
    PEER_UP,
    PEER_ROUND_TRIP,
    DROPPED_SPANS,
)
