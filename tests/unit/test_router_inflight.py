"""The in-flight book: reserve, release, never negative, empty at the end."""

import asyncio
import contextlib

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dayzero.router import InFlight, OwnLoad, ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


class Book(RuleBasedStateMachine):
    """Any order of reserving, first tokens and (repeated) releases against a plain list."""

    def __init__(self):
        super().__init__()
        self.book = InFlight()
        self.model = []
        self.ever = []
        self.now_s = 0.0

    @rule(replica=st.sampled_from([A, B]), tokens=st.integers(0, 10**6), step_s=st.floats(0, 5))
    def reserve(self, replica, tokens, step_s):
        self.now_s += step_s
        reservation = self.book.reserve(replica, tokens, self.now_s)
        self.model.append([reservation, replica, tokens, self.now_s])
        self.ever.append(reservation)

    @rule(data=st.data())
    def release(self, data):
        if self.ever:
            reservation = data.draw(st.sampled_from(self.ever))
            reservation.release()
            self.model = [entry for entry in self.model if entry[0] is not reservation]

    @rule(data=st.data())
    def first_token(self, data):
        if self.ever:
            reservation = data.draw(st.sampled_from(self.ever))
            reservation.first_token()
            for entry in self.model:
                if entry[0] is reservation:
                    entry[2] = 0

    @rule(data=st.data(), replica=st.sampled_from([A, B]), step_s=st.floats(0, 5))
    def move(self, data, replica, step_s):
        if self.ever:
            self.now_s += step_s
            reservation = data.draw(st.sampled_from(self.ever))
            reservation.move(replica, self.now_s)
            for entry in self.model:
                if entry[0] is reservation and entry[1] != replica:
                    entry[1], entry[3] = replica, self.now_s

    @rule(report_s=st.none() | st.floats(0, 20))
    def unreported(self, report_s):
        for replica in (A, B):
            later = [e for e in self.model if e[1] == replica and (report_s is None or e[3] > report_s)]
            expected = OwnLoad(len(later), sum(e[2] for e in later))
            assert self.book.unreported(replica, report_s) == expected

    @invariant()
    def the_book_is_the_list(self):
        self.book.check_integrity()
        assert self.book.total == len(self.model)
        assert self.book.replicas == {e[1] for e in self.model}
        for replica in (A, B):
            mine = [e for e in self.model if e[1] == replica]
            assert self.book.own(replica) == OwnLoad(len(mine), sum(e[2] for e in mine))

    def teardown(self):
        for reservation in self.ever:
            reservation.release()
        assert self.book.total == 0
        assert self.book.replicas == frozenset()


TestBook = Book.TestCase


def test_a_reservation_is_released_by_leaving_its_with_however_it_is_left():
    book = InFlight()
    with contextlib.suppress(KeyError), book.reserve(A, 10, 0.0):
        assert book.own(A) == OwnLoad(1, 10)
        raise KeyError
    assert book.total == 0


async def test_a_cancelled_request_leaves_nothing_in_the_book():
    book, entered = InFlight(), asyncio.Event()

    async def request():
        with book.reserve(A, 10, 0.0):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await entered.wait()
    assert book.total == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert book.total == 0


def test_a_negative_prompt_is_refused_and_not_counted():
    book = InFlight()
    with pytest.raises(ValueError, match="0 or more"):
        book.reserve(A, -1, 0.0)
    assert book.total == 0
