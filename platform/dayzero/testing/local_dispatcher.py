"""LocalDispatcher: engines of this very process behind the Dispatcher seam, where production has Ray Serve.

It uses the router's own `place` and book, and the same frames on the way, so that a gateway over it behaves as
one over Serve, short of what only processes can do.
"""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from dayzero.engine.frames import decode, encode_delta, encode_error
from dayzero.engine.protocol import Engine
from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.errors import DayzeroError
from dayzero.router.inflight import InFlight, Reservation
from dayzero.router.load import Candidate, CostModel, ReplicaId, Report
from dayzero.router.place import Placement, PlaceRequest, View, place


class LocalDispatch:
    """One attempt at one engine."""

    def __init__(self, engine: Engine, request: EngineRequest, held: Reservation) -> None:
        self._engine = engine
        self._request = request
        self._held = held

    @property
    def replica(self) -> str | None:
        return self._held.replica

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        request = EngineRequest.decode(self._request.encode())
        with self._held:
            async with aclosing(self._frames(request)) as frames:
                async for frame in frames:
                    delta = decode(frame)
                    if delta.token_ids:
                        self._held.first_token()
                    yield delta

    async def _frames(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._engine.generate(request)) as deltas:
                async for delta in deltas:
                    yield encode_delta(delta)
        except DayzeroError as e:
            yield encode_error(e)


class LocalDispatcher:
    """`engines`: started engines by replica name. `book` is open to tests: its counts must return to zero.

    `reusable`: what each replica has cached of a request's prompt, in tokens; without it nobody knows.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        cost: CostModel | None = None,
        slots: int = 16,
        max_requests: int = 256,
        reusable: Callable[[EngineRequest], Mapping[str, int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.book = InFlight()
        self._engines = dict(engines)
        self._cost = cost or CostModel()
        self._slots = slots
        self._max_requests = max_requests
        self._reusable = reusable
        self._clock = clock

    def unit_sizes(self) -> frozenset[int]:
        """None: what is cached is told here by `reusable`, not by chains."""
        return frozenset()

    def place(self, request: EngineRequest, excluded: frozenset[str]) -> Placement:
        """Raises NoReplicaError."""
        asked = PlaceRequest(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            excluded=frozenset(ReplicaId(name) for name in excluded),
            affinity=request.affinity,
        )
        cached = self._reusable(request) if self._reusable is not None else {}
        candidates = tuple(
            self._candidate(ReplicaId(name), engine, cached.get(name))
            for name, engine in self._engines.items()
        )
        return place(asked, View(candidates, self._cost), self._clock())

    def dispatch(self, request: EngineRequest, placement: Placement) -> LocalDispatch:
        best = placement.scores[0]
        held = self.book.reserve(best.replica, request.expected_uncached_tokens, self._clock())
        return LocalDispatch(self._engines[best.replica], request, held)

    def replicas(self) -> list[dict[str, Any]]:
        return [
            {"replica": name, "in_flight": self.book.own(ReplicaId(name)).requests, "health": "ok"}
            for name in self._engines
        ]

    def _candidate(self, replica: ReplicaId, engine: Engine, reusable_tokens: int | None) -> Candidate:
        stats = engine.stats()
        return Candidate(
            replica=replica,
            slots=self._slots,
            max_requests=self._max_requests,
            report=Report(stats.running, stats.waiting, stats.running_prompt_tokens, self._clock()),
            own=self.book.own(replica),
            reusable_tokens=reusable_tokens,
        )
