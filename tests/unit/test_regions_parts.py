"""Parts of the way between regions: what answers mean, what is told, frames out, and which region is asked."""

import asyncio

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.frames import decode
from dayzero.engine.types import EngineRequest, Finish, Sampling, TokenDelta, pack_ids
from dayzero.errors import DayzeroError, InvalidRequestError
from dayzero.gateway.errors import DeadlineError, RegionFullError, RegionLostError, RegionRefusedError
from dayzero.gateway.regions import health
from dayzero.gateway.regions.answers import as_error
from dayzero.gateway.regions.client import PeerClient
from dayzero.gateway.regions.dispatcher import RegionalDispatcher
from dayzero.gateway.regions.info import ModelInfo, PeerInfo, info, other_vocabulary, told
from dayzero.gateway.regions.outbox import Outbox, ready
from dayzero.gateway.regions.peer import Peer, PeerAddress, _Digest
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.gateway.regions.wire import Kind, Parser
from dayzero.router.errors import NoReplicaError
from dayzero.router.load import CostModel
from dayzero.router.regions import SpillPolicy, Why
from dayzero.testing.local_dispatcher import LocalDispatcher
from dayzero.testing.scripted_engine import ScriptedEngine

# What an answer means

OURS = b'{"error": {"message": "words", "type": "t", "param": "messages", "code": "%s"}}'


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, OURS % b"invalid_api_key", RegionRefusedError),
        (403, OURS % b"permission_denied", RegionRefusedError),
        (401, b"<html>", RegionRefusedError),
        (503, OURS % b"engine_overloaded", RegionFullError),
        (503, OURS % b"no_replica_available", RegionFullError),
        (503, OURS % b"engine_dead", RegionLostError),
        (503, b"<html>no server is available", RegionLostError),
        (502, b"", RegionLostError),
        (500, OURS % b"internal_error", RegionLostError),
        (404, OURS % b"model_not_found", RegionLostError),
        (404, b"Not Found", RegionLostError),
        (302, b"", RegionLostError),
        (200, b"[]", RegionLostError),
        (504, OURS % b"timeout", DeadlineError),
        (400, OURS % b"bad", InvalidRequestError),
        (413, OURS % b"request_too_large", InvalidRequestError),
    ],
)
def test_an_answer_means_what_is_whose_fault(status, body, kind):
    error = as_error("west", status, body, None)
    assert type(error) is kind
    assert error.retryable is (kind in (RegionRefusedError, RegionFullError, RegionLostError))


@given(st.integers(100, 599), st.binary(max_size=200), st.none() | st.text(max_size=12))
def test_any_answer_is_an_error_of_ours(status, body, retry_after):
    error = as_error("west", status, body, retry_after)
    assert isinstance(error, DayzeroError)
    assert error.retry_after_s is None or 0 <= error.retry_after_s <= 60


@given(st.sampled_from(["message", "param", "code"]), st.none() | st.integers() | st.lists(st.integers()))
def test_fields_of_another_type_are_not_taken_as_they_are(field, value):
    body = msgspec.json.encode({"error": {"message": "m", "param": "p", "code": "c", field: value}})
    error = as_error("west", 400, body, None)
    assert isinstance(error.message, str)
    assert error.param is None or isinstance(error.param, str)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"error": ' + b"[" * 100_000,
        b'{"error": {"message": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"error": {"message": "\xff\xfe"}}',
    ],
)
def test_an_answer_that_is_nested_deep_or_no_text_is_an_error_of_ours(body):
    assert isinstance(as_error("west", 500, body, None), RegionLostError)


def test_what_an_answer_says_is_cut():
    long = b"x" * 5000
    error = as_error("west", 400, OURS.replace(b"words", long).replace(b"messages", long) % long, None)
    assert (len(error.message), len(error.param), len(error.code)) == (512, 512, 512)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"region": "\xff"}', b'{"x": ' + b"[" * 100_000])
async def test_a_load_that_cannot_be_read_is_a_lost_region(body):
    async def answer(request):
        return httpx.Response(200, stream=httpx.ByteStream(body))

    client = PeerClient("west", "http://127.0.0.1:1", "key", connect_s=1.0)
    await client._http.aclose()
    client._http = httpx.MockTransport(answer)
    with pytest.raises(RegionLostError, match="cannot be read"):
        await client.info()
    await client.aclose()


def test_how_long_to_wait_is_kept():
    assert as_error("west", 503, OURS % b"engine_overloaded", "7").retry_after_s == 7


# What is told


def dispatcher(*names, **options):
    return LocalDispatcher({name: ScriptedEngine() for name in names}, **options)


def test_what_is_told_of_a_model_is_what_a_request_would_meet():
    cost = CostModel(fixed_s=0.05, prefill_s_per_token=0.002)
    line = told("m", dispatcher("r1", "r2", cost=cost), None)
    assert (line.able, line.health) == (2, {"healthy": 2})
    assert line.wait_s == pytest.approx(0.05)
    assert line.prefill_s_per_token == pytest.approx(0.002)


def test_a_model_that_nobody_can_serve_is_told_with_the_reason():
    line = told("m", dispatcher("r1", max_requests=0), 7)
    assert (line.wait_s, line.able, line.digest) == (None, 0, 7)
    assert "full" in line.why
    whole = info("west", [("m", "", dispatcher("r1", max_requests=0))], None)
    assert whole.model("m").wait_s is None
    assert whole.model("other") is None


@pytest.mark.parametrize("field", ["wait_s", "prefill_s_per_token", "able"])
@pytest.mark.parametrize("value", [-1, 1e9, "soon"])
def test_figures_from_outside_are_bounded(field, value):
    body = msgspec.json.encode({"region": "w", "version": 1, "models": [{"model": "m", field: value}]})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=PeerInfo)


# Frames out


async def deltas_of(gaps, *, error=None, closed=None):
    try:
        for token_id, gap in enumerate(gaps):
            for _ in range(gap):
                await asyncio.sleep(0)
            yield TokenDelta(token_ids=(token_id,))
        if error:
            raise error
        yield TokenDelta(token_ids=(999,), finish=Finish.STOP)
    finally:
        if closed is not None:
            closed.append(True)


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_ready_deltas_arrive_once_in_order_however_slow_the_reader(gaps, pauses):
    async def collect():
        found = []
        async for delta in ready(deltas_of(gaps), 1.0):
            found.append(delta)
            for _ in range(pauses[len(found) % len(pauses)]):
                await asyncio.sleep(0)
        return [delta for delta in found if delta is not None]

    found = asyncio.run(collect())
    assert [i for delta in found for i in delta.token_ids] == [*range(len(gaps)), 999]
    assert [delta.finish for delta in found if delta.finish] == [Finish.STOP]


async def test_deltas_that_come_while_a_frame_is_sent_go_together():
    found = []
    async for delta in ready(deltas_of([0] * 50), 1.0):
        found.append(delta)
        await asyncio.sleep(0.01)  # as long as a frame under load
    assert len(found) <= 3
    assert sum(len(delta.token_ids) for delta in found) == 51


async def test_silence_is_filled_with_beats_and_an_error_is_raised_after_what_came_before_it():
    enough = asyncio.Event()

    async def slow():
        yield TokenDelta(token_ids=(1,))
        await enough.wait()
        raise EngineDeadError("gone")

    found = []
    with pytest.raises(EngineDeadError):
        async for delta in ready(slow(), 0.01):
            found.append(delta)
            if found.count(None) == 3:
                enough.set()
    assert found[0].token_ids == (1,)
    assert found[1:4] == [None, None, None]


@pytest.mark.parametrize("turns", range(6))
async def test_closing_closes_the_deltas_at_whatever_moment(turns):
    closed, begun = [], []

    async def endless():
        begun.append(True)
        try:
            while True:
                await asyncio.sleep(0)
                yield TokenDelta(token_ids=(1,))
        finally:
            closed.append(True)

    async def read():
        stream = ready(endless(), 1.0)
        try:
            async for _ in stream:
                await asyncio.sleep(0)
        finally:
            await stream.aclose()

    task = asyncio.create_task(read())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert closed == begun


async def test_the_last_delta_and_the_end_leave_as_one_piece():
    sent = []

    async def send(message):
        sent.append(message)

    outbox = Outbox(send, [], stuck_s=1.0)
    await outbox.start("r1")
    await outbox.placed("r1")
    await outbox.placed("r2")
    await outbox.heartbeat()
    await outbox.delta(TokenDelta(token_ids=(1,), finish=Finish.STOP))
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    assert [body["more_body"] for body in bodies] == [True, True, True, False]
    parser = Parser()
    frames = [frame for body in bodies for frame in parser.feed(body["body"])]
    assert [frame.kind for frame in frames] == [
        Kind.PLACED,
        Kind.PLACED,
        Kind.HEARTBEAT,
        Kind.DELTA,
        Kind.END,
    ]
    assert [frame.payload for frame in frames[:2]] == [b"r1", b"r2"]
    assert decode(frames[3].payload).finish is Finish.STOP


# Which region is asked

POLICY = RegionsPolicy()


class KnowsAll:
    """A digest that has so many tokens of every prompt."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.asked = []

    def unit_sizes(self):
        return frozenset({16})

    def depth_tokens(self, chains):
        self.asked.append({unit: len(chain) for unit, chain in chains.items()})
        return self.tokens


def peers(*names, **lines):
    """Peers that were heard of just now, each idle unless `lines` says otherwise."""
    made = []
    for name in names:
        peer = Peer(PeerAddress(name, "http://127.0.0.1:1"), "key", POLICY, clock=lambda: 10.0)
        peer._health = health.probe_answered(peer._health, POLICY.health)
        line = ModelInfo(model="m", able=1, wait_s=0.01, prefill_s_per_token=0.001)
        peer._info = PeerInfo(region=name, models=(lines.get(name, line),))
        peer._info_s = 10.0
        made.append(peer)
    return Peers(made)


def regional(local, known):
    return RegionalDispatcher(local, known, model="m", home="home", policy=SpillPolicy(), clock=lambda: 10.0)


def request(tokens=100, **fields):
    ids = pack_ids(range(tokens))
    return EngineRequest(request_id="r", prompt_ids=ids, sampling=Sampling(max_tokens=1), **fields)


async def test_a_placement_at_home_is_the_local_one_with_the_choice():
    place = regional(dispatcher("r1"), peers("west")).place(request(), frozenset())
    assert place.order == ("r1",)
    assert (place.choice.target, place.choice.why) == ("home", Why.HOME)


async def test_what_failed_is_passed_over_and_a_region_with_a_failed_replica_is_the_last_resort():
    regions = regional(None, peers("a", "b"))
    first = regions.place(request(), frozenset()).choice.target
    other = {"a": "b", "b": "a"}[first]
    assert regions.place(request(), frozenset({first})).choice.target == other
    assert regions.place(request(), frozenset({f"{first}/r1"})).choice.target == other
    again = regions.place(request(), frozenset({f"{first}/r1", other})).choice
    assert (again.target, again.avoid) == (first, ("r1",))
    with pytest.raises(NoReplicaError):
        regions.place(request(), frozenset({first, f"{first}/r1", other}))


async def test_where_nobody_can_serve_the_home_regions_own_words_are_raised():
    full = dispatcher("r1", max_requests=0)
    with pytest.raises(NoReplicaError, match="1 full"):
        regional(full, peers()).place(request(), frozenset())
    with pytest.raises(NoReplicaError, match="No region"):
        regional(None, peers()).place(request(), frozenset())


OWN, OTHER = "a1" * 32, "b2" * 32


@pytest.mark.parametrize(
    ("own", "theirs", "other"),
    [(OWN, OWN, False), (OWN, OTHER, True), ("", OTHER, False), (OWN, "", False), ("", "", False)],
)
def test_two_vocabularies_are_others_where_both_are_known_and_differ(own, theirs, other):
    why = other_vocabulary(own, ModelInfo(model="m", vocabulary=theirs))
    assert bool(why) is other
    assert not other or (f"{OTHER[:12]} there" in why and f"{OWN[:12]} here" in why)
    assert other_vocabulary(own, None) == ""


def test_a_region_tells_its_vocabulary_and_one_that_does_not_is_read():
    whole = info("west", [("m", OWN, dispatcher("r1")), ("n", OTHER, dispatcher("r2", max_requests=0))], None)
    assert [whole.model(name).vocabulary for name in ("m", "n")] == [OWN, OTHER]
    assert msgspec.json.decode(msgspec.json.encode(whole), type=PeerInfo) == whole
    old = b'{"region": "w", "models": [{"model": "m"}]}'
    assert msgspec.json.decode(old, type=PeerInfo).model("m").vocabulary == ""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(old.replace(b'"m"', b'"m", "vocabulary": "a word"'), type=PeerInfo)


async def test_a_peer_with_another_vocabulary_gets_no_request_of_that_model_and_says_so_once(caplog):
    line = ModelInfo(model="m", able=1, wait_s=0.01, vocabulary=OTHER)
    known = peers("west", west=line)
    known.speak({"m": OWN})
    with pytest.raises(NoReplicaError):
        regional(None, known).place(request(), frozenset())
    west = known["west"]
    for _ in range(3):
        west._note_vocabularies(west._info)
    assert caplog.text.count("region west is not sent some requests: its vocabulary of m") == 1
    (told_of,) = west.status()["models"]
    assert "another one" in told_of["why"]
    assert "wait_s" not in told_of
    known.speak({"m": OTHER})
    assert regional(None, known).place(request(), frozenset()).choice.target == "west"


async def test_a_peers_digest_is_asked_with_chains_of_its_own_units():
    known = peers("warm", "cold")
    knows = KnowsAll(4096)
    known["warm"]._digests["m"] = _Digest(1, knows)
    place = regional(None, known).place(request(5000), frozenset())
    assert place.choice.target == "warm"
    assert place.predicted_s == pytest.approx(0.01 + (5000 - 4096) * 0.001)
    assert knows.asked == [{16: 5000 // 16}]


async def test_a_request_under_way_to_a_peer_weighs_there_until_it_is_released():
    known = peers("west")
    regions = regional(None, known)
    place = regions.place(request(2000), frozenset())
    now = [11.0]
    known["west"]._clock = lambda: now[0]
    sent = regions.dispatch(request(2000), place)
    assert known["west"].in_flight == 1
    view = known["west"].view("m", 0)
    assert (view.unreported.requests, view.unreported.prefill_tokens) == (1, 2000)
    with pytest.raises(RegionLostError, match="cannot be reached"):
        async for _ in sent.deltas():
            pass
    assert known["west"].in_flight == 0
    assert sent.replica == "west"
