"""Every span and every attribute there is, by name.

- A span takes no attribute that is not here, so no span can come near the SDK's limit of 128, where the oldest
  attributes (model, tenant, status) would be pushed out by the newest.
- None of them is content: no prompt, no answer, no key, no file name. Free text is cut (`MAX_VALUE_CHARACTERS`).
"""

from enum import StrEnum

MAX_VALUE_CHARACTERS = 256


class SpanName(StrEnum):
    REQUEST = "gateway.request"
    """From the first byte of a request to its settlement. The root at our edge."""
    RENDER = "gateway.render"
    """The conversation becomes prompt ids."""
    PLACE = "gateway.place"
    """The router decides."""
    DISPATCH = "gateway.dispatch"
    """One attempt at one replica. Attempts are siblings: a retry is beside what it retries."""
    GENERATE = "replica.generate"
    """What the replica did with the request; the engine's own spans are below it."""
    CANARY = "gateway.canary"
    """A small request of our own that proves a replica answers."""


class Attribute(StrEnum):
    REQUEST_ID = "dayzero.request_id"
    """Ours; the same id names the request in the engine."""
    CLIENT_REQUEST_ID = "dayzero.client_request_id"
    """What the client called it, cut."""
    TENANT = "dayzero.tenant"
    """The authenticated tenant."""
    KEY_ID = "dayzero.key_id"
    """The start of the key's digest, never of the key."""
    ROUTE = "dayzero.route"
    """The route's name."""
    MODEL = "dayzero.model"
    """The served model's own name, not what the client wrote."""
    STREAM = "dayzero.stream"
    """Whether the answer is streamed."""
    STATUS = "http.response.status_code"
    """The HTTP status."""
    ERROR_TYPE = "error.type"
    """The class of the error; never its message."""
    FINISH = "dayzero.finish"
    """Why the answer ended."""
    DEGRADED = "dayzero.degraded"
    """The oddities of the answer that were mended by a written rule: their names, with commas."""
    MESSAGES = "dayzero.messages"
    """How many messages the conversation has."""
    TOOLS = "dayzero.tools"
    """How many tools were declared."""
    PROMPT_TOKENS = "dayzero.prompt_tokens"
    """Tokens of the rendered prompt."""
    COMPLETION_TOKENS = "dayzero.completion_tokens"
    """Tokens generated."""
    CACHED_TOKENS = "dayzero.cached_tokens"
    """Prompt tokens that the engine found in its cache."""
    MAX_TOKENS = "dayzero.max_tokens"
    """The answer's limit."""
    FIRST_TOKEN_S = "dayzero.first_token_s"  # noqa: S105 a name
    """Seconds from the request to its first token."""
    REGION = "dayzero.region"
    """The region's name."""
    TARGET_REGION = "dayzero.region.target"
    """The region that the request was sent to, this one or a peer."""
    REGION_WHY = "dayzero.region.why"
    """Why that region, as one word of a closed set."""
    POOL = "dayzero.pool"
    """The pool's name."""
    REPLICA = "dayzero.replica"
    """The replica's id: the first choice of a placement, or who took the request."""
    INCARNATION = "dayzero.incarnation"
    """The life of the replica's engine."""
    ENGINE = "dayzero.engine"
    """Which engine: vllm or sim."""
    ATTEMPT = "dayzero.attempt"
    """1 for the first."""
    RETRY_CAUSE = "dayzero.retry_cause"
    """Why the attempt before failed."""
    PLACEMENT_REASON = "dayzero.placement.reason"
    """The router's sentence."""
    PREDICTED_S = "dayzero.placement.predicted_s"
    """Predicted seconds to the first token: at the first choice, and on a request at the replica that took it."""
    PREDICTED_CACHED_TOKENS = "dayzero.placement.predicted_cached_tokens"
    """Prompt tokens that the router believed to be cached there."""
    CANDIDATES = "dayzero.placement.candidates"
    """How many replicas could be tried."""
    QUEUE_S = "dayzero.queue_s"
    """Seconds the request waited in the engine."""


class SpanEvent(StrEnum):
    FIRST_TOKEN = "first_token"  # noqa: S105 a name
    """The first token arrived."""
    CLIENT_LEFT = "client_left"
    """The client closed the connection."""
    ABORT_SENT = "abort_sent"
    """The engine was told to stop."""
