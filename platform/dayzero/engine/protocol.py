"""The engine seam: what a replica's engine promises, whichever it is.

The guarantees are numbered; `dayzero.engine.conformance` checks each by its number against every engine.

- G1   `generate` yields deltas whose ids, joined, are the whole output, in order, each id once.
- G2   Exactly one delta has `finish`; it is the last, and carries `usage` (and `times`). The first delta carries
       `usage` too, so that an answer which the gateway ends knows what was cached.
- G3   `usage.prompt_tokens` is the prompt's length; `completion_tokens` counts every id delivered.
- G4   A generated stop id is delivered as the last id, with finish STOP. At `max_tokens` the finish is LENGTH.
- G5   The same prompt, temperature 0 and a fixed seed give the same ids on the same engine.
- G6   Closing the iterator or `abort(request_id)` ends the work within the running step; nothing is generated
       after it, `stats().running` no longer counts it, and an aborted iterator ends with finish ABORT.
       Aborting an unknown or finished request does nothing.
- G7   A prompt that leaves no room raises ContextLengthError before any work; a request whose deadline has passed
       is not started. One bad request never harms another.
- G8   `usage.cached_tokens` is what the cache really gave: less than the prompt, 0 on a cold cache, and the same
       prompt again hits as far as the block size allows.
- G9   Requests with different `salt` never share cached blocks.
- G10  KV events, folded, are what is resident: each hash stored before it is removed, sequences without a gap.
- G11  `health` is token progress: OK while idle and during a long prefill; not OK within 5 s of the engine being
       killed or frozen. After that `generate` raises EngineDeadError, waiting ones included.
- G12  After `drain` begins new requests raise EngineDrainingError; `drain` returns once the running ones ended or the
       deadline passed. After `stop` nothing of the engine is left running. `stop` may be called twice.
- G13  Requests run concurrently; counts in `stats` return to zero when they end.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol, runtime_checkable

import msgspec

from dayzero.engine.kv_events import GroupKind, KVEventBatch
from dayzero.engine.types import EngineRequest, TokenDelta


class CacheGroup(msgspec.Struct, frozen=True):
    """One cache group as the RUNNING engine resolved it: `block_tokens` is never taken from a flag."""

    group: int
    kind: GroupKind
    block_tokens: int


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a started engine is. `incarnation` names this one life of it; residency of another life is void.

    `match_unit_tokens`: the granularity of a prefix hit.
    """

    model: str
    incarnation: str
    max_model_tokens: int
    match_unit_tokens: int
    cache_groups: tuple[CacheGroup, ...]
    cache_blocks: int
    engine: str
    engine_version: str


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot; counters run from the start of this incarnation."""

    running: int
    waiting: int
    running_prompt_tokens: int
    """Prompt tokens yet to be computed for requests without a token: the prefill backlog.

    Without those that are cached: as the engine found, or as the request's `expected_cached_tokens` says until then.
    """
    kv_usage: float
    """Share of cache blocks in use by running requests, 0..1."""
    prompt_tokens_total: int
    cached_tokens_total: int
    generated_tokens_total: int
    requests_total: int
    resident_blocks: dict[int, int]
    """Blocks resident in the prefix cache, by group."""
    last_token_s: float | None
    """Unix time of the last progress."""


class Health(msgspec.Struct, frozen=True):
    ok: bool
    reason: str


@runtime_checkable
class Engine(Protocol):
    """See the module's docstring for the guarantees."""

    @property
    def info(self) -> EngineInfo:
        """Raises EngineError before `start` returned."""
        ...

    async def start(self) -> EngineInfo:
        """Load the model. Raises EngineStartError; nothing is left running then."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]: ...

    async def abort(self, request_id: str) -> None: ...

    def kv_events(self) -> AsyncIterator[KVEventBatch]:
        """Batches from now on; several readers each get all of them. A slow reader sees a gap, never blocks."""
        ...

    def stats(self) -> EngineStats: ...

    async def health(self) -> Health: ...

    async def drain(self, deadline_s: float) -> None:
        """Stop taking work; wait up to `deadline_s` seconds for what runs."""
        ...

    async def stop(self) -> None: ...
