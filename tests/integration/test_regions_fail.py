"""A region that is wrong in every way there is, beside one that is well: what clients see, and how often it is asked.

- `a` is the fake that fails and looks the faster one; `b` is real.
"""

import asyncio
import contextlib
import dataclasses

import openai
import pytest

from dayzero.engine.errors import EngineOverloadedError
from dayzero.engine.frames import encode_delta, encode_error
from dayzero.engine.types import EngineRequest, Sampling, TokenDelta, pack_ids
from dayzero.errors import DayzeroError
from dayzero.gateway.errors import RegionLostError
from dayzero.gateway.http import JSON_TYPE, send_bytes
from dayzero.gateway.regions.peer import Peer, PeerAddress
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.gateway.regions.wire import Kind, Writer
from dayzero.gateway.retry import RetryPolicy
from dayzero.router.regions import SpillPolicy
from tests.integration.gateways import free_socket
from tests.integration.region_gateways import ASK, fake_region, region
from tests.integration.test_regions import TEXT, engine_saying, text_of

# Requests are the evidence here: probes, and the age of what they told, bear that this process stands still for a while.
PATIENT = RegionsPolicy(probe_timeout_s=10.0, spill=SpillPolicy(max_age_s=30.0))
QUICK = dataclasses.replace(PATIENT, first_token_s=1.5, lost_after_s=1.0, first_frame_s=1.5, heartbeat_s=0.1)
START = {"type": "http.response.start", "status": 200, "headers": []}


def piece(data, *, more=True):
    return {"type": "http.response.body", "body": data, "more_body": more}


async def until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


def streaming(*frames, then=None):
    """Frames, then what `then` says: silence, heartbeats, or the end of the connection."""
    gone = asyncio.Event()

    async def generate(receive, send):
        writer = Writer()
        await send(START)
        for kind, payload in frames:
            await send(piece(writer.frame(kind, payload)))
        if then == "heartbeats":
            for _ in range(60):
                await asyncio.sleep(0.05)
                await send(piece(writer.frame(Kind.HEARTBEAT)))
        elif then == "silence":
            await until_gone(receive)
            gone.set()
        else:
            await send(piece(b"", more=False))

    generate.gone = gone
    return generate


async def nothing_at_all(receive, send):
    await until_gone(receive)


async def headers_only(receive, send):
    await send(START)
    await until_gone(receive)


async def garbage(receive, send):
    await send(START)
    await send(piece(b"\x00\x01\x02 not a stream of ours" * 40, more=False))


async def half_a_frame(receive, send):
    await send(START)
    await send(piece(Writer().frame(Kind.PLACED, b"r1")[:-3], more=False))


async def proxy_page(receive, send):
    await send_bytes(send, 502, b"<html><body><h1>502 Bad Gateway</h1>", [(b"content-type", b"text/html")])


async def our_500(receive, send):
    body = b'{"error": {"message": "Something failed on our side.", "code": "internal_error"}}'
    await send_bytes(send, 500, body, [JSON_TYPE])


async def full(receive, send):
    body = b'{"error": {"message": "no room", "code": "engine_overloaded"}}'
    await send_bytes(send, 503, body, [JSON_TYPE, (b"retry-after", b"2")])


placed = (Kind.PLACED, b"r1")


def finished(finish, *token_ids):
    return Kind.DELTA, encode_delta(TokenDelta(token_ids=token_ids, finish=finish))


overloaded = (Kind.ERROR, encode_error(EngineOverloadedError("its queue is full")))

FAULTS = {
    "nothing at all": nothing_at_all,
    "headers only": headers_only,
    "garbage": garbage,
    "half a frame": half_a_frame,
    "a proxy's page": proxy_page,
    "a 500 of ours": our_500,
    "always full": full,
    "placed, then silence": streaming(placed, then="silence"),
    "placed, then heartbeats only": streaming(placed, then="heartbeats"),
    "placed, then the end": streaming(placed),
    "an engine's error": streaming(placed, overloaded),
    "a delta that cannot be read": streaming(placed, (Kind.DELTA, b"d\xff"), (Kind.END, b"")),
    "an end without an answer": streaming(placed, (Kind.END, b"")),
    "an end without a finish": streaming(placed, (Kind.DELTA, encode_delta(TokenDelta())), (Kind.END, b"")),
    "an error frame with a delta": streaming(placed, (Kind.ERROR, encode_delta(TokenDelta(finish="stop")))),
    "an abort that nobody asked for": streaming(placed, finished("abort"), (Kind.END, b"")),
    "a name that is none": streaming((Kind.PLACED, b"r1\r\nx: y"), then="heartbeats"),
    "a delta nested deep": streaming(placed, (Kind.DELTA, b"d" + b"\x91" * 10_000 + b"\xc0")),
    "a token id that cannot be": streaming(placed, (Kind.DELTA, b"d\x81\xa9token_ids\x91\xff")),
    "an error as the finish": streaming(placed, finished("error"), (Kind.END, b"")),
}


@pytest.fixture
def two(smollm2):
    """An edge that prefers the fake region `a`, whose answers a test gives, to the real region `b`."""

    def make(generate, **options):
        @contextlib.asynccontextmanager
        async def both():
            async with (
                region("b", smollm2, {"r1": engine_saying(smollm2)}) as b,
                fake_region("a", generate) as a,
                region("edge", smollm2, peers={"a": a.url, "b": b.url}, policy=QUICK, **options) as edge,
            ):
                await edge.knows("a", "b")
                yield edge, a, b

        return both()

    return make


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_request_without_a_token_is_answered_by_another_region(two, fault):
    async with two(FAULTS[fault]) as (edge, a, b):
        stream = await edge.client().chat.completions.create(**ASK, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == TEXT
        assert a.posts == 1
        await edge.settled(1)
        assert [s.attempts for s in edge.settlements] == [2]
        await edge.check_nothing_is_left()
        await b.check_nothing_is_left()


@pytest.mark.parametrize(
    ("frames", "outcome", "kind"),
    [
        ([(Kind.END, b"")], "lost", RegionLostError),
        ([(Kind.DELTA, encode_delta(TokenDelta(token_ids=(1,)))), (Kind.END, b"")], "lost", RegionLostError),
        ([finished("stop", 1), finished("stop", 2), (Kind.END, b"")], "lost", RegionLostError),
        ([(Kind.ERROR, finished("stop", 1)[1])], "lost", RegionLostError),
        ([finished("abort"), (Kind.END, b"")], "failed", RegionLostError),
        ([finished("error"), (Kind.END, b"")], "failed", RegionLostError),
        ([finished("abort", 1), (Kind.END, b"")], "answered", None),
        ([finished("stop"), (Kind.END, b"")], "answered", None),
    ],
)
async def test_only_an_answer_with_its_finish_is_an_answer(frames, outcome, kind):
    writer = Writer()
    whole = b"".join(writer.frame(*frame) for frame in (placed, *frames))

    async def generate(receive, send):
        await send(START)
        await send(piece(whole, more=False))

    async with fake_region("a", generate) as a:
        peer = Peer(PeerAddress("a", a.url), "key", PATIENT)
        counted = Outcomes()
        peer.observer = counted
        await peer.probe()
        request = EngineRequest(
            request_id="r", prompt_ids=pack_ids([1, 2, 3]), sampling=Sampling(max_tokens=9)
        )
        error = None
        try:
            async for _ in peer.dispatch("m", request, predicted_s=None, avoid=()).deltas():
                pass
        except DayzeroError as e:
            error = e
        await peer.close()
    assert counted.outcomes == [outcome]
    assert type(error) is (kind or type(None))
    assert error is None or error.retryable
    assert peer._health.request_failures == (0 if kind is None else 1), "the circuit has its evidence"


class Outcomes:
    def __init__(self):
        self.outcomes = []

    def forwarded(self, region, outcome):
        self.outcomes.append(outcome)


@pytest.mark.parametrize("then", ["silence", "end"])
async def test_after_a_token_nothing_is_replayed_and_the_stream_ends_with_an_error(two, smollm2, then):
    ids = smollm2._encoder.encode(["one two three"], at_start=False)[0].tolist()
    deltas = [(Kind.DELTA, encode_delta(TokenDelta(token_ids=(token_id,)))) for token_id in ids]
    generate = streaming(placed, *deltas, then=then)
    async with two(generate) as (edge, _, b):
        text = ""
        with pytest.raises(openai.APIError) as cut:
            async for chunk in await edge.client().chat.completions.create(**ASK, stream=True):
                text += chunk.choices[0].delta.content or ""
        assert text == "one two three"
        assert cut.value.code == "region_lost"
        assert not b.engines["r1"].requests
        if then == "silence":  # the late answer is not waited for: its stream was closed from here
            await asyncio.wait_for(generate.gone.wait(), 10)
        await edge.check_nothing_is_left()


@pytest.mark.parametrize(
    "fault", ["a proxy's page", "a 500 of ours", "always full", "garbage", "headers only"]
)
async def test_a_region_that_always_fails_is_asked_seldom(two, fault):
    """M3: ejected within five failures, and attempts stay within a tenth more than requests, and the floor."""
    budget = RetryPolicy(max_attempts=3, budget_share=0.1, budget_floor_per_s=1.0)
    async with two(FAULTS[fault], retry=budget) as (edge, a, _):
        answers = 0
        for _ in range(10):
            answers += len(await asyncio.gather(*(text_of(edge) for _ in range(10))))
        assert answers == 100
        attempts = sum(s.attempts for s in edge.settlements)
        assert attempts <= 1.1 * 100 + 1.0 * 10
        # Ten are sent at once before the first failure is known; after that only trials.
        assert a.posts <= 10 + 5
        assert edge.peers["a"]._health.opened, "its circuit opened, and only a good answer closes it"
        assert edge.peers["b"].up


async def test_requests_one_after_another_meet_a_failing_region_three_times_at_most(two):
    async with two(proxy_page) as (edge, a, _):
        for _ in range(20):
            assert await text_of(edge) == TEXT
        assert a.posts <= 4


async def test_a_region_that_recovers_is_used_again_after_a_trial(two, smollm2):
    ids = [*smollm2._encoder.encode(["Well."], at_start=False)[0].tolist(), smollm2.stop_ids[0]]
    ill = True
    well = streaming(
        placed,
        *((Kind.DELTA, encode_delta(TokenDelta(token_ids=(i,)))) for i in ids[:-1]),
        (Kind.DELTA, encode_delta(TokenDelta(token_ids=ids[-1:], finish="stop"))),
        (Kind.END, b""),
    )

    async def generate(receive, send):
        await (proxy_page if ill else well)(receive, send)

    async with two(generate) as (edge, a, _):
        while edge.peers["a"].up:
            assert await text_of(edge) == TEXT
        ill, failed = False, a.posts
        async with asyncio.timeout(20):
            while await text_of(edge) != "Well.":
                await asyncio.sleep(0.02)
        assert a.posts == failed + 1
        assert edge.peers["a"].up


async def test_where_every_region_fails_the_client_is_told_so_in_time(smollm2):
    async with (
        fake_region("a", headers_only) as a,
        region("edge", smollm2, peers={"a": a.url}, policy=QUICK) as edge,
    ):
        await edge.knows("a")
        async with asyncio.timeout(15):
            with pytest.raises(openai.InternalServerError) as lost:
                await text_of(edge)
        assert lost.value.status_code == 503
        assert a.posts == 1
        await edge.check_nothing_is_left()


async def test_a_slow_region_with_a_long_prediction_is_waited_for(smollm2):
    """The first token may take as many times as long as was predicted, whatever the fixed limit."""
    policy = RegionsPolicy(first_token_s=0.3, first_token_factor=2.0)
    assert policy.first_token_within_s(None) == 0.3
    assert policy.first_token_within_s(40.0) == 80.0


async def test_something_else_at_a_regions_address_is_not_a_region(smollm2):
    async def never(receive, send):
        raise AssertionError("nothing may be sent there")

    async with fake_region("c", never) as c, region("edge", smollm2, peers={"a": c.url}) as edge:
        async with asyncio.timeout(10):
            while "there is c" not in edge.peers["a"].status()["why"]:
                await asyncio.sleep(0.01)
        with pytest.raises(openai.APIStatusError):
            await text_of(edge)


async def test_a_region_with_a_hanging_probe_does_not_hold_up_another(smollm2):
    sock, url = free_socket()
    sock.listen(1)  # it takes connections and answers none
    async with (
        region("b", smollm2, {"r1": engine_saying(smollm2)}) as b,
        region("edge", smollm2, peers={"a": url, "b": b.url}) as edge,
    ):
        await edge.knows("b")
        assert await text_of(edge) == TEXT
        async with asyncio.timeout(15):
            while "no answer within" not in edge.peers["a"].status()["why"]:
                await asyncio.sleep(0.01)
    sock.close()


async def test_slow_is_not_dead_a_region_that_streams_stays_in_use_though_it_answers_no_probe(smollm2):
    ids = smollm2._encoder.encode(["one two"], at_start=False)[0].tolist()
    streams = asyncio.Event()

    async def generate(receive, send):
        writer = Writer()
        await send(START)
        await send(piece(writer.frame(*placed)))
        await send(piece(writer.frame(Kind.DELTA, encode_delta(TokenDelta(token_ids=tuple(ids))))))
        while not streams.is_set():
            await asyncio.sleep(0.1)
            await send(piece(writer.frame(Kind.HEARTBEAT)))
        last = TokenDelta(token_ids=smollm2.stop_ids[:1], finish="stop")
        await send(piece(writer.frame(Kind.DELTA, encode_delta(last))))
        await send(piece(writer.frame(Kind.END), more=False))

    async with (
        fake_region("a", generate) as a,
        region("edge", smollm2, peers={"a": a.url}) as edge,
    ):
        await edge.knows("a")
        asking = asyncio.create_task(text_of(edge))
        while not a.posts:
            await asyncio.sleep(0.01)
        a.mute, before = True, a.probes
        async with asyncio.timeout(10):
            while a.probes < before + 4:
                await asyncio.sleep(0.01)
        assert edge.peers["a"].up
        streams.set()
        assert await asking == "one two"
        await edge.knows("a", up=False)
