"""What a dispatcher makes of replicas' reports, the feed and its own book, before Serve is asked for anything."""

import time
import uuid

import pytest

pytest.importorskip("ray.serve")
from dayzero.engine.types import EngineRequest, Sampling, TokenDelta, Usage, pack_ids
from dayzero.gateway.generation import carried
from dayzero.router.chain import Chain, Namespace
from dayzero.router.changes import Layout, Life, Stored
from dayzero.router.errors import NoReplicaError
from dayzero.router.load import CostModel
from dayzero.router.residency import Residency
from dayzero.serving.board import BOARDS, ReplicaReport
from dayzero.serving.dispatcher import ServeDispatcher
from dayzero.telemetry.tracing import OFF

IDS = pack_ids(range(160))
REQUEST = EngineRequest(request_id="r", prompt_ids=IDS, sampling=Sampling(max_tokens=1))
IDLE = {"running": 0, "waiting": 0, "running_prompt_tokens": 0}


class Handle:
    """As much of a handle as is needed before a call."""

    def __init__(self):
        self.deployment_name = f"pool-{uuid.uuid4()}"

    def options(self, *, stream):
        assert stream
        return self


def report(incarnation="1", age_s=0.0, *, ok=True, **stats):
    now_s = time.time()
    said = {
        "stats": IDLE | stats,
        "health": {"ok": ok, "reason": ""},
        "info": {"incarnation": incarnation},
        "reported_s": now_s - age_s,
    }
    return ReplicaReport(said, seen_s=now_s - age_s)


@pytest.fixture
def placing():
    """A dispatcher with a feed that says that "warm" has 144 of the prompt's 160 tokens, and a way to post reports."""
    residency, handle = Residency(), Handle()
    residency.begin(Life(replica="warm", incarnation="1", model="m", layout=Layout(16, 16, (0,)), blocks=100))
    residency.apply("warm", [Stored(0, Chain.of(IDS, Namespace("m", 16)).joined, 1)])
    dispatcher = ServeDispatcher(
        handle, model="m", residency=residency, cost=CostModel(), slots=4, max_requests=8
    )
    return dispatcher, BOARDS.of(handle.deployment_name)


def test_what_a_replica_has_cached_counts_for_the_life_that_reports_only(placing):
    dispatcher, board = placing
    board.post({"warm": report(), "cold": report()})
    placed = dispatcher.place(REQUEST, frozenset())
    assert placed.order == ("warm", "cold")
    assert [score.reusable_tokens for score in placed.scores] == [144, None]
    board.post({"warm": report(incarnation="2"), "cold": report()})
    assert [s.reusable_tokens for s in dispatcher.place(REQUEST, frozenset()).scores] == [None, None]


def test_a_replica_with_another_vocabulary_gets_no_request_and_is_named_once(caplog):
    handle = Handle()
    dispatcher = ServeDispatcher(
        handle,
        model="m",
        residency=Residency(),
        cost=CostModel(),
        slots=4,
        max_requests=8,
        vocabulary="a1" * 32,
    )
    board = BOARDS.of(handle.deployment_name)
    mine, other = report(), report()
    mine.stats["vocabulary"], other.stats["vocabulary"] = "a1" * 32, "b2" * 32
    board.post({"mine": mine, "other": other, "silent": report()})
    for _ in range(3):
        placed = dispatcher.place(REQUEST, frozenset())
        assert set(placed.order) == {"mine", "silent"}
        assert [(skip.replica, skip.why) for skip in placed.skipped] == [("other", "unhealthy")]
    assert caplog.text.count("the replica other gets no request of m: its vocabulary is not") == 1


def test_who_is_ill_silent_or_has_failed_the_request_is_passed_over(placing):
    dispatcher, board = placing
    board.post({"warm": report(ok=False), "frozen": report(age_s=5.0), "well": report(), "tried": report()})
    placed = dispatcher.place(REQUEST, frozenset({"tried"}))
    assert placed.order == ("well",)
    assert {skip.replica: skip.why for skip in placed.skipped} == {
        "warm": "unhealthy",
        "frozen": "unhealthy",
        "tried": "failed this request",
    }
    board.post({})
    with pytest.raises(NoReplicaError):
        dispatcher.place(REQUEST, frozenset())


async def test_a_dispatch_counts_what_is_not_cached_until_it_ends(placing):
    dispatcher, board = placing
    board.post({"warm": report(), "cold": report()})
    placement = dispatcher.place(REQUEST, frozenset())
    sent = dispatcher.dispatch(carried(REQUEST, placement, OFF), placement)
    assert sent.replica == "warm"
    assert sent._request.expected_cached_tokens == 144
    assert sent._request.chain == b""
    (warm, cold) = dispatcher._book.own("warm"), dispatcher._book.own("cold")
    assert (warm.requests, warm.prefill_tokens, cold.requests) == (1, 160 - 144, 0)
    sent._held.release()
    assert dispatcher._book.total == 0


def test_what_first_tokens_taught_of_replicas_that_went_is_forgotten(placing):
    dispatcher, board = placing
    board.post({"warm": report(), "cold": report()})
    scores = dispatcher.place(REQUEST, frozenset()).scores
    first = TokenDelta(token_ids=(1,), usage=Usage(160, 1, 144))
    for replica in ("warm", "cold"):
        for _ in range(2):  # the first of a replica is let go
            dispatcher._learn(scores, REQUEST, replica, first, 2.0)
    assert len(dispatcher._fits) == 2
    board.post({"cold": report()})
    dispatcher._learn(scores, REQUEST, "cold", first, 2.0)
    assert len(dispatcher._fits) == 1
