"""The Dispatcher over Serve handles: the router's decision here, Serve's machinery for the rest.

- A reservation is made before anything is awaited and released on any exit.
- Closing a dispatch cancels Serve's call, which closes the replica's generator, which aborts the engine's work.
- Whatever Ray raises for a replica that vanished becomes EngineDeadError; so does waiting on one that went silent
  while others report (`router.silence`), which Ray takes for slow.
"""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.frames import decode
from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.router.inflight import InFlight, Reservation
from dayzero.router.load import Candidate, CostModel, ReplicaId, Report
from dayzero.router.place import Placement, PlaceRequest, View, place
from dayzero.router.silence import LOST_AFTER_S, SUSPECT_AFTER_S, silent
from dayzero.serving.board import BOARDS, ReplicaReport
from dayzero.serving.patience import LostError, patient
from dayzero.serving.ticket import Ticket
from dayzero.telemetry.tracing import continued


class ServeDispatch:
    """One attempt through a handle."""

    def __init__(
        self,
        handle: DeploymentHandle,
        request: EngineRequest,
        ticket: Ticket,
        held: Reservation,
        lost: Callable[[str | None], bool] = lambda _: False,
    ) -> None:
        self._handle = handle
        self._request = request
        self._ticket = ticket
        self._held = held
        self._lost = lost

    @property
    def replica(self) -> str | None:
        return self._ticket.replica or self._ticket.order[0]

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        """Raises the engine's errors; EngineDeadError for a replica that is gone."""
        with self._held:
            with continued(self._request.trace):  # Ray's own spans look for the current one
                response = self._handle.generate.remote(self._ticket, self._request.encode())
            ended = False
            try:
                async with aclosing(patient(response, lambda: self._lost(self.replica))) as frames:
                    async for frame in frames:
                        delta = decode(frame)
                        if delta.token_ids:
                            self._held.first_token()
                        ended = delta.finish is not None
                        yield delta
                ended = True
            except LostError:
                raise EngineDeadError("The replica that had this request went silent.") from None
            except (RayError, RayServeException) as e:
                ended = True
                raise EngineDeadError(
                    f"The replica that had this request is gone ({type(e).__name__})."
                ) from e
            finally:
                if not ended:
                    give_up(response)


def give_up(response: DeploymentResponseGenerator) -> None:
    """Cancels a call, at whatever point of its life.

    Between the moment Serve assigned it and the moment its reader is told, Serve's own `cancel` finds neither an
    assignment to stop nor a result to cancel (ray 2.60), and the replica would generate for nobody to the end.
    """
    response.cancel()
    assigned = response._replica_result_future  # noqa: SLF001 there is no other way to the call
    told = response._replica_result is not None  # noqa: SLF001
    if not told and assigned.done() and not assigned.cancelled() and assigned.exception() is None:
        assigned.result().cancel()


class ServeDispatcher:
    """One pool's replicas, reached through one handle."""

    def __init__(
        self,
        handle: DeploymentHandle,
        *,
        cost: CostModel,
        slots: int,
        max_requests: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handle = handle.options(stream=True)
        self._board = BOARDS.of(handle.deployment_name)
        self._cost = cost
        self._slots = slots
        self._max_requests = max_requests
        self._clock = clock
        self._book = InFlight()

    def place(self, request: EngineRequest, excluded: frozenset[str]) -> Placement:
        """Raises NoReplicaError."""
        reports = self._board.reports()
        suspects = silent(_ages(reports), SUSPECT_AFTER_S)
        candidates = tuple(
            self._candidate(ReplicaId(name), report, suspect=name in suspects)
            for name, report in reports.items()
        )
        asked = PlaceRequest(
            request.request_id, request.prompt_tokens, frozenset(ReplicaId(name) for name in excluded)
        )
        return place(asked, View(candidates, self._cost), self._clock())

    def dispatch(self, request: EngineRequest, placement: Placement) -> ServeDispatch:
        held = self._book.reserve(placement.order[0], request.prompt_tokens, self._clock())
        return ServeDispatch(self._handle, request, Ticket(placement.order), held, self._is_lost)

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
            )
            for name, report in sorted(reports.items())
        ]

    def _is_lost(self, replica: str | None) -> bool:
        return replica is not None and replica in silent(_ages(self._board.reports()), LOST_AFTER_S)

    @property
    def ready(self) -> bool:
        """Whether Serve has told this process of its replicas."""
        return self._board.posted

    def _candidate(self, replica: ReplicaId, report: ReplicaReport, *, suspect: bool) -> Candidate:
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
            healthy=not suspect and (health is None or health["ok"]),
            report=said,
            own=self._book.own(replica),
            unreported=self._book.unreported(replica, said.at_s if said else None),
        )


def _ages(reports: Mapping[str, ReplicaReport]) -> dict[ReplicaId, float]:
    """Seconds since each replica's last report came in, by this process's own clock; those without one are left out."""
    now_s = time.time()
    return {ReplicaId(name): now_s - report.seen_s for name, report in reports.items() if report.stats}


def describe(
    name: str, report: ReplicaReport, in_flight: int, now_s: float, *, suspect: bool = False
) -> dict[str, Any]:
    """One replica as `dayzero status` shows it; figures it did not report are absent."""
    said = report.stats
    line: dict[str, Any] = {"replica": name, "in_flight": in_flight}
    if not said:
        return line | {"health": "unknown", "doing": "has not reported yet"}
    stats, info, health = said["stats"], said["info"], said["health"]
    if suspect:
        health = {"ok": False, "reason": f"silent for {now_s - report.seen_s:.0f} s"}
    return line | {
        "health": "ok" if health["ok"] else health["reason"],
        "doing": doing(stats),
        "running": stats["running"],
        "waiting": stats["waiting"],
        "backlog_tokens": stats["running_prompt_tokens"],
        "kv_usage": round(stats["kv_usage"], 4),
        "cached_blocks": sum(stats["resident_blocks"].values()),
        "prompt_tokens_total": stats["prompt_tokens_total"],
        "cached_tokens_total": stats["cached_tokens_total"],
        "generated_tokens_total": stats["generated_tokens_total"],
        "requests_total": stats["requests_total"],
        "engine": info["engine"],
        "engine_version": info["engine_version"],
        "incarnation": info["incarnation"],
        "up_s": round(now_s - said["started_s"], 1),
        "report_age_s": round(now_s - said["reported_s"], 1),
    }


def doing(stats: dict[str, Any]) -> str:
    """What a replica is at, in words."""
    if not stats["running"] and not stats["waiting"]:
        return "idle"
    parts = []
    if stats["running_prompt_tokens"]:
        parts.append(f"prefilling {stats['running_prompt_tokens']:,} tokens")
    if stats["running"]:
        parts.append(f"generating {stats['running']}")
    if stats["waiting"]:
        parts.append(f"{stats['waiting']} waiting")
    return ", ".join(parts)
