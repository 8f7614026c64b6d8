"""The simulated engine beyond the conformance kit: time, limits, refusals, and many streams at once."""

import asyncio
import time

import numpy as np
import pytest

from dayzero.engine.errors import (
    ContextLengthError,
    EngineDeadError,
    EngineError,
    EngineOverloadedError,
    EngineStartError,
    UnsupportedFeatureError,
)
from dayzero.engine.kv_events import GroupKind
from dayzero.engine.performance import StepModel
from dayzero.engine.protocol import Engine
from dayzero.engine.simulated_output import OutputVoice
from dayzero.engine.simulated_profile import load_profile
from dayzero.engine.types import EngineRequest, Finish, Grammar, GrammarKind, Media, Sampling, pack_ids
from dayzero.errors import InvalidRequestError
from dayzero.serving.engines.sim import SimulatedEngine

VOICE = OutputVoice.of(range(100, 400), stop_id=7, output_tokens=(5, 40))


def request(name="r", prompt=20, *, max_tokens=8, ignore_eos=True, **fields):
    ids = np.random.default_rng(len(name)).integers(1000, 2000, size=prompt)
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return EngineRequest(**({"request_id": name, "prompt_ids": pack_ids(ids), "sampling": sampling} | fields))


async def drain(deltas):
    return [delta async for delta in deltas]


@pytest.fixture
async def engine():
    engine = SimulatedEngine(load_profile("instant"), VOICE, max_waiting=4)
    await engine.start()
    yield engine
    await engine.stop()


def changed(name, **fields):
    """A named profile with other fields; `cache` and `limits` are given as changes to theirs."""
    import dataclasses

    import msgspec

    profile = load_profile(name)
    for part in ("cache", "limits"):
        if part in fields:
            fields[part] = dataclasses.replace(getattr(profile, part), **fields[part])
    return msgspec.structs.replace(profile, **fields)


async def test_it_is_an_engine(engine):
    assert isinstance(engine, Engine)


async def test_200_streams_end_and_leave_nothing_behind(engine):
    streams = [drain(engine.generate(request(f"r{i}", prompt=50 + i % 7, max_tokens=50))) for i in range(200)]
    engine._max_waiting = 200
    answers = await asyncio.gather(*streams)
    assert [deltas[-1].finish for deltas in answers] == [Finish.LENGTH] * 200
    assert sum(len(delta.token_ids) for deltas in answers for delta in deltas) == 200 * 50
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_usage, stats.running_prompt_tokens) == (0, 0, 0, 0)
    assert stats.generated_tokens_total == 200 * 50


async def test_a_full_queue_refuses_and_says_when_to_come_back(engine):
    waiting = [engine.generate(request(f"w{i}", max_tokens=50)) for i in range(4)]
    first = [asyncio.ensure_future(anext(deltas)) for deltas in waiting]
    refused = asyncio.ensure_future(drain(engine.generate(request("one too many"))))
    with pytest.raises(EngineOverloadedError) as raised:
        await refused
    assert raised.value.retry_after_s == 1
    await asyncio.gather(*first)
    for deltas in waiting:
        await deltas.aclose()


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"grammar": Grammar(GrammarKind.JSON_OBJECT)}, UnsupportedFeatureError, "grammar"),
        ({"lora": "adapter"}, UnsupportedFeatureError, "lora"),
        ({"kv_transfer": {"do_remote_decode": True}}, UnsupportedFeatureError, "kv_transfer"),
        ({"prompt_ids": b""}, InvalidRequestError, "prompt_ids"),
        ({"prompt": 9000}, ContextLengthError, "prompt_ids"),
        ({"max_tokens": 0}, InvalidRequestError, "max_tokens"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_field(engine, fields, error, param):
    with pytest.raises(error) as raised:
        await drain(engine.generate(request(**fields)))
    assert raised.value.param == param
    assert engine.stats().requests_total == 0


async def test_pictures_count_as_their_placeholders_and_tell_prompts_apart(engine):
    def picture(name, digest):
        return request(name, prompt=100, request_id=name, media=(Media(b"png", digest, 3, 5),))

    cached = [
        (await drain(engine.generate(one)))[-1].usage.cached_tokens
        for one in (picture("a", b"1"), picture("b", b"1"), picture("c", b"2"), picture("a", b"2"))
    ]
    assert cached == [0, 96, 0, 96]


async def test_a_running_id_is_refused_a_second_time_and_free_after(engine):
    first = engine.generate(request("same", max_tokens=4000))
    await anext(first)
    with pytest.raises(InvalidRequestError, match="unique"):
        await drain(engine.generate(request("same")))
    await first.aclose()
    assert (await drain(engine.generate(request("same"))))[-1].finish is Finish.LENGTH


async def test_steps_take_the_models_time_scaled():
    profile = changed("instant", step=StepModel(base_s=0.5))
    engine = SimulatedEngine(profile, VOICE, time_scale=0.02)
    await engine.start()
    began_s = time.monotonic()
    (*_, last) = await drain(engine.generate(request(max_tokens=20)))
    took_s = time.monotonic() - began_s
    await engine.stop()
    assert 0.18 < took_s < 1.0, "20 steps of 0.5 s, times 0.02"
    assert 0 < last.times.first_token_s < last.times.total_s <= took_s


async def test_a_deadline_that_passes_while_running_ends_with_abort():
    engine = SimulatedEngine(changed("instant", step=StepModel(base_s=0.01)), VOICE)
    await engine.start()
    deltas = await drain(engine.generate(request(max_tokens=4000, deadline_s=time.time() + 0.1)))
    await engine.stop()
    assert deltas[-1].finish is Finish.ABORT
    assert 0 < deltas[-1].usage.completion_tokens < 100


async def test_a_cache_too_small_for_one_request_does_not_start():
    engine = SimulatedEngine(changed("instant", cache={"blocks": 100}), VOICE)
    with pytest.raises(EngineStartError, match="give it 513 blocks"):
        await engine.start()
    with pytest.raises(EngineError, match="not started"):
        _ = engine.info


async def test_streams_that_outgrow_the_cache_all_end():
    profile = changed("instant-hybrid", cache={"blocks": 96}, limits={"max_model_tokens": 4096})
    engine = SimulatedEngine(profile, VOICE)
    await engine.start()
    answers = await asyncio.gather(
        *(drain(engine.generate(request("x" * i, prompt=500, max_tokens=2000))) for i in range(1, 9))
    )
    assert [deltas[-1].usage.completion_tokens for deltas in answers] == [2000] * 8
    await engine.stop()


async def test_a_slow_reader_gets_fewer_deltas_and_all_ids(engine):
    deltas = engine.generate(request(max_tokens=500))
    first = await anext(deltas)
    await asyncio.sleep(0.2)
    rest = await drain(deltas)
    assert len(first.token_ids) + sum(len(delta.token_ids) for delta in rest) == 500
    assert len(rest) < 250


async def test_a_busy_loop_is_not_taken_for_a_dead_engine(engine):
    deltas = engine.generate(request(max_tokens=4000))
    await anext(deltas)
    time.sleep(3)  # noqa: ASYNC251 - the very thing: somebody holds up the loop
    await asyncio.sleep(0.1)
    assert (await engine.health()).ok
    await deltas.aclose()


async def test_an_idle_engine_that_freezes_is_found(engine):
    engine.freeze()
    for _ in range(100):
        await asyncio.sleep(0.05)
        health = await engine.health()
        if not health.ok:
            break
    assert "no progress" in health.reason
    with pytest.raises(EngineDeadError):
        await drain(engine.generate(request()))


async def test_a_slow_reader_of_events_sees_a_gap_and_holds_nobody_up(engine):
    from dayzero.engine import simulated_streams

    reader = engine.kv_events()
    for i in range(simulated_streams._READER_BATCHES + 50):
        engine._broadcast.publish((), float(i))
    first = await anext(reader)
    assert first.sequence == 51, "the oldest 50 are gone"


async def test_the_info_is_what_runs(engine):
    info = engine.info
    assert (info.engine, info.match_unit_tokens, info.max_model_tokens) == ("sim", 16, 8192)
    assert [(group.kind, group.block_tokens) for group in info.cache_groups] == [(GroupKind.ATTENTION, 16)]


async def test_the_backlog_is_what_is_left_to_compute():
    profile = changed("instant", limits={"sequences": 1, "batched_tokens": 2048}, step=StepModel(base_s=0.05))
    engine = SimulatedEngine(profile, VOICE)
    await engine.start()
    try:
        seen = set()
        cold = asyncio.ensure_future(drain(engine.generate(request("cold", prompt=6001, max_tokens=4))))
        while not cold.done():
            seen.add(engine.stats().running_prompt_tokens)
            await asyncio.sleep(0.005)
        # Chunks of 2,048 tokens; the step that runs counts as done.
        assert {3953, 1905, 0} <= seen <= {6001, 3953, 1905, 0}
        # One runs; behind it wait the same prompt, which the router knows to be cached, and another, unknown to it.
        running = asyncio.ensure_future(drain(engine.generate(request("busy", prompt=20, max_tokens=20))))
        while not engine.stats().running:
            await asyncio.sleep(0.001)
        again = request("cold", prompt=6001, request_id="again", expected_cached_tokens=6000)
        waiting = [
            asyncio.ensure_future(drain(engine.generate(one)))
            for one in (again, request("other", prompt=100))
        ]
        while engine.stats().waiting < 2:
            await asyncio.sleep(0.001)
        assert engine.stats().running_prompt_tokens - 101 in {0, 20}  # "busy" has its first token, or has not
        answers = await asyncio.gather(running, *waiting)
        assert answers[1][-1].usage.cached_tokens == 6000
        assert engine.stats().running_prompt_tokens == 0
    finally:
        await engine.stop()


def test_a_prompt_is_never_expected_to_be_wholly_cached():
    assert [
        request(prompt=20, expected_cached_tokens=cached).expected_uncached_tokens
        for cached in (0, 16, 20, 99, -5)
    ] == [20, 4, 1, 1, 20]
