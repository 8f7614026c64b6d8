"""One attempt through a Serve handle: the call, its frames as deltas, and its end, whatever ends it.

- The reservation was made before anything was awaited; it is released on any exit, and moves to the replica that Serve
  chose where that is not the first of the order.
- Closing a dispatch cancels Serve's call, which closes the replica's generator, which aborts the engine's work.
- Whatever Ray raises for a replica that vanished becomes EngineDeadError; so does waiting on one that went silent
  while others report (`router.silence`), which Ray takes for slow.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.frames import decode
from dayzero.engine.types import EngineRequest, TokenDelta
from dayzero.router.inflight import Reservation
from dayzero.router.load import ReplicaId
from dayzero.serving.patience import LostError, patient
from dayzero.serving.ticket import Ticket
from dayzero.telemetry.tracing import continued

Learn = Callable[[ReplicaId, TokenDelta, float], None]
"""What a first token teaches: who made it, the delta that brought it, seconds since it was sent."""


def _nothing(_replica: ReplicaId, _delta: TokenDelta, _seconds: float) -> None:
    pass


class ServeDispatch:
    """See the module's docstring."""

    def __init__(
        self,
        handle: DeploymentHandle,
        request: EngineRequest,
        ticket: Ticket,
        held: Reservation,
        *,
        lost: Callable[[str | None], bool] = lambda _: False,
        learn: Learn = _nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handle = handle
        self._request = request
        self._ticket = ticket
        self._held = held
        self._lost = lost
        self._learn = learn
        self._clock = clock

    @property
    def replica(self) -> str | None:
        return self._ticket.replica or self._ticket.order[0]

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        """Raises the engine's errors; EngineDeadError for a replica that is gone."""
        began_s = self._clock()
        with self._held:
            with continued(self._request.trace):  # Ray's own spans look for the current one
                response = self._handle.generate.remote(self._ticket, self._request.encode())
            ended = answered = False
            try:
                async with aclosing(patient(response, lambda: self._lost(self.replica))) as frames:
                    async for frame in frames:
                        delta = decode(frame)
                        if delta.token_ids and not answered:
                            answered = True
                            self._first_token(delta, self._clock() - began_s)
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

    def _first_token(self, delta: TokenDelta, seconds: float) -> None:
        self._held.first_token()
        if self._ticket.replica is not None:
            replica = ReplicaId(self._ticket.replica)
            self._held.move(replica, self._clock())
            self._learn(replica, delta, seconds)


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
