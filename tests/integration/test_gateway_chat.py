"""Chat completions over real HTTP with OpenAI's own client: answers, streams, and how they end."""

import asyncio
import json

import httpx
import openai
import pytest

from dayzero.engine.errors import EngineDeadError, EngineError
from dayzero.engine.simulated_output import OutputVoice
from dayzero.engine.simulated_profile import load_profile
from dayzero.engine.types import Finish, TokenDelta
from dayzero.gateway.lifetime import Outcome
from dayzero.gateway.retry import RetryPolicy
from dayzero.gateway.service import CanaryPolicy, GatewayLimits
from dayzero.serving.engines.sim import SimulatedEngine
from dayzero.testing.scripted_engine import HANG, ScriptedEngine, say
from tests.integration.gateways import MODEL, serving

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def ids_of(frontend, text):
    """The ids of a text, and the stop id."""
    return [*frontend._encoder.encode([text], at_start=False)[0].tolist(), frontend.stop_ids[0]]


def engine_saying(frontend, text, **options):
    return ScriptedEngine(say(ids_of(frontend, text), **options))


async def test_a_buffered_answer_has_text_usage_and_a_request_id(smollm2):
    async with serving({"a": engine_saying(smollm2, "Paris is nice.")}, smollm2) as served:
        answer = await served.client().chat.completions.with_raw_response.create(**ASK)
        body = answer.parse()
        assert body.choices[0].message.content == "Paris is nice."
        assert body.choices[0].finish_reason == "stop"
        assert body.usage.completion_tokens == len(ids_of(smollm2, "Paris is nice."))
        assert answer.headers["x-request-id"].removeprefix("req_") == body.id.removeprefix("chatcmpl-")
        (settlement,) = await served.settled()
        assert settlement.outcome is Outcome.OK
        assert settlement.completion_tokens == body.usage.completion_tokens
        await served.check_nothing_is_left()


async def test_a_streamed_answer_is_the_buffered_one_in_pieces(smollm2):
    text = "Grüße 👋🏽 aus Paris\n"
    async with serving({"a": engine_saying(smollm2, text)}, smollm2) as served:
        stream = await served.client().chat.completions.create(
            **ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage.completion_tokens == len(ids_of(smollm2, text))
        assert len({c.id for c in chunks}) == 1
        await served.check_nothing_is_left()


async def test_a_stream_ends_with_done_and_nothing_after_it(smollm2):
    async with serving({"a": engine_saying(smollm2, "ok")}, smollm2) as served, httpx.AsyncClient() as http:
        answer = await http.post(
            f"{served.url}/v1/chat/completions", json=ASK | {"stream": True}, headers=served.headers
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.text.count("[DONE]") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_it_and_aborts_the_engine(smollm2, stream):
    engine = engine_saying(smollm2, "one two three four five six", every_s=0.01)
    async with serving({"a": engine}, smollm2) as served:
        answer = await served.client().chat.completions.create(**ASK, stop=[" three"], stream=stream)
        if stream:
            text = "".join([c.choices[0].delta.content or "" async for c in answer])
        else:
            text = answer.choices[0].message.content
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage.completion_tokens == 3
        assert text == "one two"
        assert len(engine.closed) == 1
        (settlement,) = await served.settled()
        assert settlement.stopped
        await served.check_nothing_is_left()


async def test_the_limit_gives_finish_length(smollm2):
    engine = SimulatedEngine(load_profile("instant"), OutputVoice.of(range(300, 400), 2))
    async with serving({"a": engine}, smollm2) as served:
        answer = await served.client().chat.completions.create(
            **ASK, max_completion_tokens=5, extra_body={"ignore_eos": True}
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5


async def test_a_repeated_prompt_reports_cached_tokens_and_another_tenant_shares_none(smollm2):
    engine = SimulatedEngine(load_profile("instant"), OutputVoice.of(range(300, 400), 2))
    long = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 100}], "max_tokens": 3}
    async with serving({"a": engine}, smollm2) as served:
        first = await served.client().chat.completions.create(**long)
        second = await served.client().chat.completions.create(**long)
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        assert second.usage.prompt_tokens_details.cached_tokens >= 96


async def test_logprobs_are_given_for_every_token(smollm2):
    engine = SimulatedEngine(load_profile("instant"), OutputVoice.of(range(300, 400), 2))
    async with serving({"a": engine}, smollm2) as served:
        answer = await served.client().chat.completions.create(
            **ASK, max_tokens=6, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True}
        )
        content = answer.choices[0].logprobs.content
        assert len(content) == 6
        assert all(len(entry.top_logprobs) == 2 for entry in content)
        assert b"".join(bytes(entry.bytes) for entry in content).decode() == answer.choices[0].message.content


async def test_an_engine_that_dies_before_the_first_token_is_replaced_unseen(smollm2):
    dead = ScriptedEngine(lambda _: [EngineDeadError("gone")])
    well = engine_saying(smollm2, "fine")
    async with serving({"a": dead, "b": well}, smollm2) as served:
        for _ in range(8):
            answer = await served.client().chat.completions.create(**ASK)
            assert answer.choices[0].message.content == "fine"
        settled = await served.settled(8)
        assert {s.attempts for s in settled} <= {1, 2}
        assert any(s.attempts == 2 for s in settled)
        assert b"dayzero_gateway_retries_total" in served.gateway.metrics_text()
        await served.check_nothing_is_left()


async def test_when_every_replica_fails_the_client_gets_a_503_in_openais_shape(smollm2):
    dead = {name: ScriptedEngine(lambda _: [EngineDeadError("gone")]) for name in "abcd"}
    async with serving(dead, smollm2, retry=RetryPolicy(max_attempts=3)) as served:
        with pytest.raises(openai.InternalServerError) as refused:
            await served.client().chat.completions.create(**ASK)
        assert refused.value.status_code == 503
        assert refused.value.body["code"] == "engine_dead"
        assert sum(len(engine.requests) for engine in dead.values()) == 3


@pytest.mark.parametrize("error", [EngineDeadError("gone"), EngineError("broken"), RuntimeError("a bug")])
async def test_an_engine_that_fails_mid_stream_ends_it_with_one_error_event(smollm2, error):
    steps = [TokenDelta(token_ids=(i,)) for i in ids_of(smollm2, "half an")[:-1]]
    engine = ScriptedEngine(lambda _: [*steps, error])
    async with serving({"a": engine}, smollm2) as served, httpx.AsyncClient() as http:
        answer = await http.post(
            f"{served.url}/v1/chat/completions", json=ASK | {"stream": True}, headers=served.headers
        )
        frames = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert frames[-1] == "[DONE]"
        assert "error" in json.loads(frames[-2])
        assert all("error" not in json.loads(frame) for frame in frames[:-2])
        assert all(json.loads(frame)["choices"][0]["finish_reason"] is None for frame in frames[:-2])
        assert "a bug" not in answer.text
        (settlement,) = await served.settled()
        assert settlement.truncated
        await served.check_nothing_is_left()


async def test_an_answer_that_the_engine_cuts_off_is_an_error_not_a_success(smollm2):
    engine = ScriptedEngine(lambda _: [TokenDelta(token_ids=(300,), finish=Finish.ABORT)])
    async with serving({"a": engine}, smollm2) as served:
        with pytest.raises(openai.InternalServerError):
            await served.client().chat.completions.create(**ASK)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_the_engines_work_at_once(smollm2, stream):
    engine = ScriptedEngine(lambda _: [TokenDelta(token_ids=(300,)), HANG])
    async with serving({"a": engine}, smollm2) as served:
        asking = asyncio.create_task(_read_forever(served, stream=stream))
        async with asyncio.timeout(5):
            while not engine.stats().running:
                await asyncio.sleep(0.005)
        asking.cancel()
        async with asyncio.timeout(0.2):
            while not engine.closed:
                await asyncio.sleep(0.002)
        (settlement,) = await served.settled()
        assert settlement.outcome is Outcome.CLIENT_GONE
        assert settlement.status == 499
        await served.check_nothing_is_left()


async def _read_forever(served, *, stream):
    async with httpx.AsyncClient(timeout=60) as http:
        url, body = f"{served.url}/v1/chat/completions", ASK | {"stream": stream}
        async with http.stream("POST", url, json=body, headers=served.headers) as answer:
            async for _ in answer.aiter_bytes():
                pass


async def test_a_request_past_its_time_gets_a_504_or_an_error_event(smollm2):
    engine = ScriptedEngine(lambda _: [TokenDelta(token_ids=(300,)), HANG])
    async with serving({"a": engine}, smollm2, limits=GatewayLimits(request_timeout_s=0.3)) as served:
        with pytest.raises(openai.InternalServerError) as late:
            await served.client().chat.completions.create(**ASK)
        assert late.value.status_code == 504
        with pytest.raises(openai.APIError) as cut:
            async for _ in await served.client().chat.completions.create(**ASK, stream=True):
                pass
        assert cut.value.code == "timeout"
        await served.check_nothing_is_left()


async def test_two_hundred_streams_at_once_all_end_and_leave_nothing_behind(smollm2):
    engines = {
        name: SimulatedEngine(load_profile("instant"), OutputVoice.of(range(300, 400), 2)) for name in "ab"
    }
    async with serving(engines, smollm2, slots=256) as served:
        client = served.client(timeout=60.0)

        async def one(i):
            ask = {"model": MODEL, "messages": [{"role": "user", "content": f"number {i}"}]}
            stream = await client.chat.completions.create(**ask, stream=True, max_tokens=20)
            return [c.choices[0].finish_reason async for c in stream][-1]

        ends = await asyncio.gather(*(one(i) for i in range(200)))
        assert set(ends) <= {"stop", "length"}
        await served.settled(200)
        await served.check_nothing_is_left()
        assert all(engine.stats().running == 0 for engine in engines.values())


async def test_too_many_at_once_is_a_503_that_says_when_to_come_back(smollm2):
    engine = ScriptedEngine(lambda _: [HANG])
    async with serving({"a": engine}, smollm2, limits=GatewayLimits(max_in_flight=1)) as served:
        first = asyncio.create_task(_read_forever(served, stream=True))
        async with asyncio.timeout(5):
            while not engine.stats().running:
                await asyncio.sleep(0.005)
        with pytest.raises(openai.InternalServerError) as refused:
            await served.client().chat.completions.create(**ASK)
        assert refused.value.status_code == 503
        assert int(refused.value.response.headers["retry-after"]) >= 1
        first.cancel()


async def test_ready_only_once_a_canary_was_answered_and_not_when_answers_stop(smollm2):
    engine = ScriptedEngine(lambda _: [EngineDeadError("loading")])
    canary = CanaryPolicy(period_s=0.2, timeout_s=1.0, max_tokens=4)
    async with serving({"a": engine}, smollm2, canary=canary) as served, httpx.AsyncClient() as http:

        async def readiness():
            return (await http.get(f"{served.url}/readyz")).status_code

        assert (await http.get(f"{served.url}/livez")).status_code == 200
        assert await readiness() == 503
        engine.script = say(ids_of(smollm2, "yes"))
        async with asyncio.timeout(5):
            while await readiness() != 200:
                await asyncio.sleep(0.02)
        engine.script = lambda _: [HANG]
        async with asyncio.timeout(5):
            while await readiness() != 503:
                await asyncio.sleep(0.05)


async def test_an_engines_refusal_names_the_clients_field(smollm2):
    engine = SimulatedEngine(load_profile("instant"), OutputVoice.of(range(300, 400), 2))
    async with serving({"a": engine}, smollm2) as served:
        with pytest.raises(openai.BadRequestError) as refused:
            await served.client().chat.completions.create(**ASK, response_format={"type": "json_object"})
        assert refused.value.param == "response_format"


async def test_large_requests_make_one_another_wait_and_no_one_else(smollm2):
    engine = SimulatedEngine(load_profile("instant"), OutputVoice.of(range(300, 400), 2))
    large = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x"}] * 1500 + [{"role": "user", "content": "y " * 150_000}],
    }
    async with serving({"a": engine}, smollm2) as served:
        client = served.client(timeout=60.0)
        heavy = [asyncio.create_task(client.chat.completions.create(**large)) for _ in range(4)]
        await asyncio.sleep(0)
        answers = [await client.chat.completions.create(**ASK, max_tokens=2) for _ in range(5)]
        assert all(answer.usage.completion_tokens for answer in answers)
        assert sum(task.done() for task in heavy) < 4
        for result in await asyncio.gather(*heavy, return_exceptions=True):
            assert isinstance(result, openai.BadRequestError)
            assert result.code == "context_length_exceeded"
