"""The book of what this gateway has at each replica.

- A reservation is the only way to count, and its release the only way to uncount; each happens once, whatever
  ends the request. Nothing else writes here: no health check, no reload, no report.
- Counts are never negative, and a replica without a reservation is not in the book, so it stays small.
- One event loop owns a book; it is not for several threads.
"""

from types import TracebackType
from typing import Self

from dayzero.router.load import OwnLoad, ReplicaId

NOTHING = OwnLoad()


class Reservation:
    """One request at one replica, from before it is sent until it ends. Use it in a `with`, or release it."""

    __slots__ = ("_book", "_prefill_tokens", "at_s", "replica")

    def __init__(self, book: "InFlight", replica: ReplicaId, prefill_tokens: int, at_s: float) -> None:
        self._book: InFlight | None = book
        self._prefill_tokens = prefill_tokens
        self.replica = replica
        self.at_s = at_s

    @property
    def prefill_tokens(self) -> int:
        """0 once the first token came."""
        return self._prefill_tokens

    @property
    def released(self) -> bool:
        return self._book is None

    def first_token(self) -> None:
        """The prompt is prefilled. May be called more than once."""
        self._prefill_tokens = 0

    def move(self, replica: ReplicaId, now_s: float) -> None:
        """It turned out to be at another replica: it counts there, as if reserved now."""
        if self._book is None or replica == self.replica:
            return
        self._book._forget(self)  # noqa: SLF001 the two are one
        self.replica, self.at_s = replica, now_s
        self._book._count(self)  # noqa: SLF001

    def release(self) -> None:
        """The request is no longer there. May be called more than once."""
        book, self._book = self._book, None
        if book is not None:
            book._forget(self)  # noqa: SLF001 the two are one

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class InFlight:
    """See the module's docstring."""

    def __init__(self) -> None:
        # In the order of reservation, so that the unreported ones are at the end.
        self._open: dict[ReplicaId, dict[int, Reservation]] = {}

    def reserve(self, replica: ReplicaId, prefill_tokens: int, now_s: float) -> Reservation:
        """Count a request of `prefill_tokens` (0 or more) uncached prompt tokens; do it before anything is awaited."""
        if prefill_tokens < 0:
            raise ValueError(f"prefill_tokens must be 0 or more, not {prefill_tokens}")
        reservation = Reservation(self, replica, prefill_tokens, now_s)
        self._count(reservation)
        return reservation

    def own(self, replica: ReplicaId) -> OwnLoad:
        """All that is there."""
        reservations = self._open.get(replica)
        if reservations is None:
            return NOTHING
        return OwnLoad(len(reservations), sum([r.prefill_tokens for r in reservations.values()]))

    def unreported(self, replica: ReplicaId, report_s: float | None) -> OwnLoad:
        """What was reserved after the replica's report at `report_s`; all of it where there is no report."""
        reservations = self._open.get(replica)
        if reservations is None:
            return NOTHING
        requests = tokens = 0
        for reservation in reversed(reservations.values()):
            if report_s is not None and reservation.at_s <= report_s:
                break
            requests += 1
            tokens += reservation.prefill_tokens
        return OwnLoad(requests, tokens)

    @property
    def total(self) -> int:
        """Requests at all replicas."""
        return sum(len(reservations) for reservations in self._open.values())

    @property
    def replicas(self) -> frozenset[ReplicaId]:
        """Those where something is."""
        return frozenset(self._open)

    def check_integrity(self) -> None:
        """Raises AssertionError where the book contradicts itself."""
        for replica, reservations in self._open.items():
            assert reservations, f"{replica} is listed without a reservation"
            for reservation in reservations.values():
                assert reservation.replica == replica, "a reservation under another replica"
                assert not reservation.released, "a released reservation is still counted"

    def _count(self, reservation: Reservation) -> None:
        self._open.setdefault(reservation.replica, {})[id(reservation)] = reservation

    def _forget(self, reservation: Reservation) -> None:
        reservations = self._open[reservation.replica]
        del reservations[id(reservation)]
        if not reservations:
            del self._open[reservation.replica]
