"""What crosses the engine seam: a request in, token deltas out, KV events and stats beside them.

- Everything here is written once as MessagePack (`encode`/`decode`): the same bytes cross Ray and, between
  regions, HTTP. `EngineRequest.version` is checked on decoding.
- Bytes that come in are outside input: whatever is wrong with them is EngineProtocolError, and ids and counts are
  bounded as they are read.
- Prompt ids travel as one little-endian uint32 buffer, never as a Python list (DESIGN section 1).
- An engine knows tokens only: no messages, no text, no stop strings.
"""

from enum import StrEnum
from typing import Annotated, Any, NewType, Self

import msgspec
import numpy as np
import numpy.typing as npt

from dayzero.engine.errors import EngineProtocolError

WIRE_VERSION = 1

TokenBuffer = NewType("TokenBuffer", bytes)
"""Token ids as little-endian uint32, 4 bytes an id."""

TokenIds = npt.NDArray[np.uint32]

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What reading bytes that are not ours raises: nested too deep, and text that is none, are not msgspec's errors."""


def pack_ids(ids: Any) -> TokenBuffer:
    """Ids (any sequence of ints in 0..2^32-1, or an array) → buffer."""
    return TokenBuffer(np.asarray(ids, dtype="<u4").tobytes())


def unpack_ids(buffer: bytes) -> TokenIds:
    """Buffer → a read-only uint32 array over the same memory."""
    return np.frombuffer(buffer, dtype="<u4")


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens. `top_k` 0 and `logprobs` None mean off; penalties as OpenAI defines them."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Alternatives to report beside each sampled token; 0 reports the sampled one alone."""
    logit_bias: dict[int, float] = {}


class GrammarKind(StrEnum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    STRUCTURAL_TAG = "structural_tag"
    KIMI_K3 = "kimi_k3"
    """Kimi K3's channels, tools and formats; `spec` is a `frontend.kimi_k3.grammar.TurnGrammar`."""


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on the output; `spec` is JSON for schemas and tags, a pattern for a regex, else empty."""

    kind: GrammarKind
    spec: str = ""


class Media(msgspec.Struct, frozen=True):
    """One picture: its bytes, the hash that enters the chain, and where its placeholder ids stand."""

    content: bytes
    digest: bytes
    offset_tokens: int
    length_tokens: int
    mime_type: str = "image/png"


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation. Field by field what DESIGN section 3 lists.

    `continuation_tokens`: how many ids at the end of the prompt were already generated for this request
    (by a replica that died); they are neither generated nor billed again.
    `chain`: the prompt's hashes in units of `chain_unit_tokens` (`router.chain`), where somebody has made them.
    `deadline_s`: Unix time after which nobody waits for the answer. `regions`: the only ones that may process it
    (a tenant's data-residency rule); None allows all. `tenant`: whose it is, for records; the salt tells caches apart.
    `expected_cached_tokens`: how much of the prompt the router believes is cached where it sends it. A hint for the
    engine's account of its backlog; what is really cached is for the engine to find.
    """

    request_id: str
    prompt_ids: bytes
    sampling: Sampling
    version: int = WIRE_VERSION
    trace: dict[str, str] = {}
    chain: bytes = b""
    chain_unit_tokens: int = 0
    salt: str = ""
    deadline_s: float | None = None
    priority: int = 0
    grammar: Grammar | None = None
    media: tuple[Media, ...] = ()
    lora: str | None = None
    kv_transfer: dict[str, Any] | None = None
    affinity: str | None = None
    continuation_tokens: int = 0
    expected_cached_tokens: int = 0
    regions: tuple[str, ...] | None = None
    tenant: str = ""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids) // 4

    @property
    def expected_uncached_tokens(self) -> int:
        """At least 1 of any prompt: its last token is always computed."""
        return max(self.prompt_tokens - max(self.expected_cached_tokens, 0), min(self.prompt_tokens, 1))

    def encode(self) -> bytes:
        return _request_encoder.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises EngineProtocolError on bytes of another version or shape."""
        try:
            request: Self = _request_decoder.decode(data)  # type: ignore[assignment]
        except UNREADABLE as e:
            raise EngineProtocolError(f"not an EngineRequest of version {WIRE_VERSION}: {e}") from e
        if request.version != WIRE_VERSION:
            raise EngineProtocolError(
                f"EngineRequest version {request.version} from a peer, this side speaks {WIRE_VERSION}"
            )
        return request


class Finish(StrEnum):
    STOP = "stop"
    """A stop id was generated; it is the last id delivered."""
    LENGTH = "length"
    ABORT = "abort"
    """Ended on request; what was generated before is delivered."""
    ERROR = "error"


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine counted. `cached_tokens`: prompt tokens whose KV was found here."""

    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count = 0
    transferred_tokens: Count = 0


class EngineTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds since the engine took the request, where known."""

    queue_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The sampled token's log probability and the alternatives asked for, as (id, logprob) pairs."""

    token_id: TokenId
    logprob: float
    top: tuple[tuple[TokenId, float], ...] = ()


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was generated since the delta before. The last one has `finish`, `usage` and `times`."""

    token_ids: tuple[TokenId, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: Finish | None = None
    usage: Usage | None = None
    times: EngineTimes | None = None
    kv_transfer: dict[str, Any] | None = None

    def encode(self) -> bytes:
        return _delta_encoder.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises EngineProtocolError."""
        try:
            delta: Self = _delta_decoder.decode(data)  # type: ignore[assignment]
        except UNREADABLE as e:
            raise EngineProtocolError(f"not a TokenDelta of version {WIRE_VERSION}: {e}") from e
        usage = delta.usage
        if usage is not None and usage.cached_tokens > usage.prompt_tokens:
            raise EngineProtocolError(
                f"a TokenDelta with {usage.cached_tokens} cached tokens of {usage.prompt_tokens} in the prompt"
            )
        return delta


_request_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(EngineRequest)
_delta_encoder = msgspec.msgpack.Encoder()
_delta_decoder = msgspec.msgpack.Decoder(TokenDelta)
