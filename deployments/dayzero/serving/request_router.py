"""The thin adapter between Serve's router and ours: it honours the order that `place` decided.

Ray 2.60 facts behind the shape of it (docs/adr/0003 says how they were seen):
- It runs in the process of the handle's owner, in the router's own thread; `args[0]` is the caller's live object.
- An exception out of `choose_replicas` is swallowed and the caller hangs; set on the request's future it arrives.
- An empty answer without `should_backoff` spins the router's loop for ever; an empty answer to a request that was
  just failed leaves its routing task behind, and the next request waits for it.
- Serve pickles this module by value: what it shares with its process (the boards) it reaches through another module.
- Within a rank the shortest queue wins and a full rank backs off, so ranks are singletons, best first.
"""

import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from dayzero.serving import board
from dayzero.serving.ticket import Ticket


class PlacementRouter(RequestRouter):  # type: ignore[misc]  # ray ships no types here
    """Sends each request where its ticket says, and posts what Serve knows of the replicas on the board."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        ticket = pending_request.args[0]
        if not isinstance(ticket, Ticket):
            return [candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranks = [[by_name[name]] for name in ticket.order if name in by_name]
        if ranks:
            return ranks
        if not pending_request.future.done():
            pending_request.future.set_exception(ticket.stale())
        return [candidate_replicas]

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: ReplicaResult,  # noqa: ARG002
    ) -> None:
        ticket = pending_request.args[0]
        if isinstance(ticket, Ticket):
            ticket.replica = replica_id.unique_id

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._post()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._post()

    def _post(self) -> None:
        now_s = time.time()
        board.BOARDS.of(self._deployment_id.name).post(
            {
                replica_id.unique_id: board.ReplicaReport(stats=_stats(replica), seen_s=now_s)
                for replica_id, replica in self.curr_replicas.items()
            }
        )


def _stats(replica: RunningReplica) -> dict[str, Any]:
    return dict(replica.routing_stats or {})
