"""The Dispatcher over Serve handles: the router's decision here, Serve's machinery for the rest.

A decision is made from memory: residency (followed from the region's feed), the replicas' reports (carried by Serve),
this gateway's own book of what it has sent, and the coefficients that first tokens have taught.

A replica whose vocabulary is another than the gateway's gets no request: a file was changed between their two starts.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from ray.serve.handle import DeploymentHandle

from dayzero.engine.chains import chains_of
from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.router.fit import Fits, Sample
from dayzero.router.inflight import InFlight
from dayzero.router.load import Candidate, CostModel, ReplicaId, Report, Score
from dayzero.router.place import Placement, PlaceRequest, View, place
from dayzero.router.residency import Residency
from dayzero.router.silence import LOST_AFTER_S, SUSPECT_AFTER_S, silent
from dayzero.serving.board import BOARDS, ReplicaReport
from dayzero.serving.dispatch import ServeDispatch
from dayzero.serving.replica_status import ANOTHER_VOCABULARY, describe, told
from dayzero.serving.ticket import Ticket

log = logging.getLogger(__name__)


class ServeDispatcher:
    """One pool's replicas, reached through one handle. `residency`: what they have cached, kept by the feed's follower.

    `vocabulary`: the digest of the gateway's own; empty where it is not known.
    """

    def __init__(
        self,
        handle: DeploymentHandle,
        *,
        model: str,
        residency: Residency,
        cost: CostModel,
        slots: int,
        max_requests: int,
        vocabulary: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handle = handle.options(stream=True)
        self._board = BOARDS.of(handle.deployment_name)
        self._model = model
        self._residency = residency
        self._cost = cost
        self._slots = slots
        self._max_requests = max_requests
        self._vocabulary = vocabulary
        self._strangers: set[str] = set()
        self._clock = clock
        self._book = InFlight()
        self._fits = Fits(cost, clock=clock)

    def unit_sizes(self) -> frozenset[int]:
        return self._residency.unit_sizes()

    def place(self, request: EngineRequest, excluded: frozenset[str]) -> Placement:
        """Raises NoReplicaError."""
        reports = self._board.reports()
        suspects = silent(_ages(reports), SUSPECT_AFTER_S)
        reusable = self._residency.reusable(
            chains_of(request, self._model, self._residency.unit_sizes()), request.prompt_tokens
        )
        candidates = tuple(
            self._candidate(ReplicaId(name), report, reusable.get(name), suspect=name in suspects)
            for name, report in reports.items()
        )
        asked = PlaceRequest(
            request.request_id,
            request.prompt_tokens,
            frozenset(ReplicaId(name) for name in excluded),
            request.affinity,
        )
        return place(asked, View(candidates, self._cost), self._clock())

    def dispatch(self, request: EngineRequest, placement: Placement) -> ServeDispatch:
        best = placement.scores[0]
        held = self._book.reserve(best.replica, request.expected_uncached_tokens, self._clock())
        return ServeDispatch(
            self._handle,
            msgspec.structs.replace(request, chain=b"", chain_unit_tokens=0),  # only placing asks with it
            Ticket(placement.order),
            held,
            lost=self._is_lost,
            learn=partial(self._learn, placement.scores[:2], request),
            clock=self._clock,
        )

    def replicas(self) -> list[dict[str, Any]]:
        reports = self._board.reports()
        suspects = silent(_ages(reports), SUSPECT_AFTER_S)
        return [
            describe(
                name,
                report,
                self._book.own(ReplicaId(name)).requests,
                time.time(),
                suspect=name in suspects,
                stranger=self._is_stranger(name, report),
            )
            | {"cost": told(self._fits.cost(ReplicaId(name)))}
            for name, report in sorted(reports.items())
        ]

    def _is_lost(self, replica: str | None) -> bool:
        return replica is not None and replica in silent(_ages(self._board.reports()), LOST_AFTER_S)

    def _candidate(
        self, replica: ReplicaId, report: ReplicaReport, reusable_tokens: int | None, *, suspect: bool
    ) -> Candidate:
        stats, health = report.stats.get("stats"), report.stats.get("health")
        said = None
        if stats is not None:
            age_s = max(0.0, time.time() - report.stats["reported_s"])
            said = Report(
                stats["running"], stats["waiting"], stats["running_prompt_tokens"], self._clock() - age_s
            )
        return Candidate(
            replica=replica,
            slots=self._slots,
            max_requests=self._max_requests,
            healthy=not suspect
            and (health is None or health["ok"])
            and not self._is_stranger(replica, report),
            report=said,
            own=self._book.own(replica),
            unreported=self._book.unreported(replica, said.at_s if said else None),
            reusable_tokens=reusable_tokens if self._is_this_life(replica, report) else None,
            cost=self._fits.cost(replica),
        )

    def _is_stranger(self, replica: str, report: ReplicaReport) -> bool:
        """Its vocabulary is another; logged once."""
        theirs = report.stats.get("vocabulary")
        if not theirs or not self._vocabulary or theirs == self._vocabulary:
            return False
        if replica not in self._strangers:
            self._strangers.add(replica)
            log.error("the replica %s gets no request of %s: %s", replica, self._model, ANOTHER_VOCABULARY)
        return True

    def _is_this_life(self, replica: ReplicaId, report: ReplicaReport) -> bool:
        """Whether the feed speaks of the engine that reports here: what another life of it held is gone."""
        life, info = self._residency.lives.get(replica), report.stats.get("info")
        return life is not None and info is not None and life.incarnation == info["incarnation"]

    def _learn(
        self,
        scores: Sequence[Score],
        request: EngineRequest,
        replica: ReplicaId,
        delta: TokenDelta,
        seconds: float,
    ) -> None:
        """What was really cached is known by now, and counts instead of what was expected."""
        score = next((score for score in scores if score.replica == replica), None)
        if score is None or delta.usage is None:
            return
        sample = Sample.of(score, seconds)
        uncached = request.prompt_tokens - delta.usage.cached_tokens
        self._fits.keep({ReplicaId(name) for name in self._board.reports()})
        self._fits.observe(replica, replace(sample, uncached_tokens=float(uncached)))


def _ages(reports: Mapping[str, ReplicaReport]) -> dict[ReplicaId, float]:
    """Seconds since each replica's last report came in, by this process's own clock; those without one are left out."""
    now_s = time.time()
    return {ReplicaId(name): now_s - report.seen_s for name, report in reports.items() if report.stats}
