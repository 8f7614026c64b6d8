"""Decision: the record of one request's placements, made when it is settled; and the log that keeps the last ones.

- One record a request that was placed, on any exit. It names the tenant, never the key, and holds no prompt, no
  token ids and no text of the user's.
- Bounded: a record holds the best `MOST_LISTED` candidates and says how many there were; the log holds `MOST_RECORDS`
  and `MOST_BYTES`, oldest out first.
- A record is JSON from the start: that is what is stored, sent and printed.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from dayzero.gateway.lifetime import Settlement
from dayzero.gateway.trail import Attempted, Trail
from dayzero.router.load import Score
from dayzero.router.regions import RegionChoice

VERSION: Final = 1
KEPT_S: Final = 3600
"""How long a region's store keeps a record."""
MOST_LISTED: Final = 16
MOST_RECORDS: Final = 2000
MOST_BYTES: Final = 16 * 1024 * 1024

_PARTS = tuple(name for name in Score.__struct_fields__ if name.endswith("_s"))


class CandidateScore(msgspec.Struct, frozen=True):
    """A replica that could be tried. `parts`: each part of its predicted seconds, which sum to `total_s`."""

    replica: str
    total_s: float
    reusable_tokens: int | None
    parts: dict[str, float]


class PassedOver(msgspec.Struct, frozen=True):
    replica: str
    why: str


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One placement and what came of it. `candidates`: best first.

    `replica`, `first_token_s` (from the dispatch) and `cached_tokens` are what really happened. `error`: the code of
    what ended it; `retried` and `retry_reason`: what was decided then. `choice`: a `RegionChoice`, where there are
    several regions, with the total of each score.
    """

    number: int
    reason: str
    candidates: tuple[CandidateScore, ...]
    candidates_total: int
    skipped: tuple[PassedOver, ...]
    skipped_total: int
    choice: dict[str, Any] | None = None
    predicted_s: float | None = None
    predicted_cached_tokens: int | None = None
    replica: str | None = None
    first_token_s: float | None = None
    cached_tokens: int | None = None
    error: str | None = None
    retried: bool = False
    retry_reason: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`at_s`: Unix time of the request's arrival. `first_token_s` and `total_s` count from there.

    `degraded`: the oddities of the answer that were mended, by name; a region that answered for another knows none.
    """

    version: int = VERSION
    request_id: str
    at_s: float
    region: str
    model: str
    tenant: str
    route: str
    prompt_tokens: int
    attempts: tuple[AttemptRecord, ...]
    outcome: str
    status: int
    error: str | None
    finish: str | None
    completion_tokens: int
    first_token_s: float | None
    total_s: float
    degraded: tuple[str, ...] = ()


class DecisionSink(Protocol):
    """Where a region keeps records for all of its gateways."""

    def keep(self, request_id: str, record: bytes) -> None:
        """Never blocks and never raises."""
        ...

    async def find(self, request_id: str) -> bytes | None:
        """Within a deadline of its own; None where there is none, or no answer."""
        ...


def decision(settlement: Settlement, trail: Trail, *, region: str, now_s: float) -> Decision:
    return Decision(
        request_id=trail.request_id,
        at_s=now_s - settlement.total_s,
        region=region,
        model=settlement.model,
        tenant=settlement.tenant,
        route=settlement.route,
        prompt_tokens=trail.prompt_tokens,
        attempts=tuple(map(_attempt, trail.attempts)),
        outcome=str(settlement.outcome),
        status=settlement.status,
        error=settlement.error_code,
        finish=settlement.finish,
        completion_tokens=settlement.completion_tokens,
        first_token_s=settlement.first_token_s,
        total_s=settlement.total_s,
        degraded=settlement.degraded,
    )


def _attempt(attempt: Attempted) -> AttemptRecord:
    placement = attempt.placement
    scores = placement.scores if placement is not None else ()
    skipped = placement.skipped if placement is not None else ()
    choice = placement.choice if placement is not None else None
    return AttemptRecord(
        number=attempt.number,
        reason=placement.reason if placement is not None else str(attempt.error or ""),
        candidates=tuple(map(_candidate, scores[:MOST_LISTED])),
        candidates_total=len(scores),
        skipped=tuple(PassedOver(skip.replica, skip.why) for skip in skipped[:MOST_LISTED]),
        skipped_total=len(skipped),
        choice=_choice(choice) if choice is not None else None,
        predicted_s=attempt.predicted_s,
        predicted_cached_tokens=attempt.predicted_cached_tokens,
        replica=attempt.replica,
        first_token_s=attempt.first_token_s,
        cached_tokens=attempt.cached_tokens,
        error=attempt.error.code if attempt.error is not None else None,
        retried=attempt.verdict is not None and attempt.verdict.retry,
        retry_reason=attempt.verdict.reason if attempt.verdict is not None else None,
    )


def _choice(choice: RegionChoice) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(choice)
    for row, score in zip(told["scores"], choice.scores, strict=True):
        row["total_s"] = score.total_s  # a property: not among its fields
    return told


def _candidate(score: Score) -> CandidateScore:
    parts = {name: getattr(score, name) for name in _PARTS}
    return CandidateScore(score.replica, score.total_s, score.reusable_tokens, parts)


def spellings(request_id: str) -> tuple[str, ...]:
    """The ids that somebody may mean: ours, without its prefix, or the completion's that clients see."""
    bare = request_id.removeprefix("chatcmpl-").removeprefix("req_")
    return tuple(dict.fromkeys((request_id, f"req_{bare}", bare)))


class DecisionLog:
    """An observer of lifetimes. Without a `sink` only this process knows, and only of its last requests."""

    def __init__(
        self,
        region: str,
        sink: DecisionSink | None = None,
        *,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._region = region
        self._sink = sink
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._wall = wall
        self._records: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._encoder = msgspec.json.Encoder()

    def settled(self, settlement: Settlement) -> None:
        trail = settlement.trail
        if trail is None or not trail.attempts:
            return  # refused before anything was decided
        made = decision(settlement, trail, region=self._region, now_s=self._wall())
        record = self._encoder.encode(made)
        self._put(made.request_id, record)
        if self._sink is not None:
            self._sink.keep(made.request_id, record)

    def _put(self, request_id: str, record: bytes) -> None:
        self._bytes += len(record) - len(self._records.pop(request_id, b""))
        self._records[request_id] = record
        while len(self._records) > self._most_records or self._bytes > self._most_bytes:
            _, oldest = self._records.popitem(last=False)
            self._bytes -= len(oldest)

    async def find(self, request_id: str) -> bytes | None:
        """A record as JSON, by any spelling of the id: this process's own first, then the region's."""
        ids = spellings(request_id)
        for one in ids:
            if one in self._records:
                return self._records[one]
        if self._sink is not None:
            for one in ids:
                record = await self._sink.find(one)
                if record is not None:
                    return record
        return None

    def __len__(self) -> int:
        return len(self._records)

    @property
    def held_bytes(self) -> int:
        return self._bytes
