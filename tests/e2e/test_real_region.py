"""`dayzero up` with vLLM: what OpenAI's own client sees of a real model."""

import asyncio
import json
import time
import uuid

import httpx
import openai
import pytest

from tests.e2e.measuring import cpu_s, last_work_s
from tests.e2e.regions import ALIAS, MODEL, POOL, ask, frames, wait_until
from tests.engine.vllm_support import needs_vllm

pytestmark = [*needs_vllm, pytest.mark.ray, pytest.mark.slow]

FRANCE = ask("What is the capital of France?", temperature=0, max_tokens=24)
BLOCK_TOKENS = 32
CONTEXT_TOKENS = 8192


def test_up_ends_with_a_region_that_answers(real, figure):
    figure(f"dayzero up: {real.up_s:.1f} s")
    assert httpx.get(f"{real.url}/readyz").status_code == 200
    rows = real.replicas()
    assert len(rows) == 2
    assert {row["engine"] for row in rows.values()} == {"vllm"}


def test_the_capital_of_france_streamed_and_not(real):
    client = real.client()
    whole = client.chat.completions.create(**FRANCE)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(**FRANCE, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].choices == []
    assert len([chunk for chunk in chunks if chunk.choices]) > 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_before_it(real, stream):
    answer = real.client().chat.completions.create(**FRANCE, stop=["Paris", "\n\n"], stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        text, finish = "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason
    else:
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert finish == "stop"
    assert "France" in text
    assert "Par" not in text


def test_the_limit_gives_finish_length_and_exact_usage(real):
    answer = real.client().chat.completions.create(
        **(FRANCE | {"max_completion_tokens": 60}), extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 60  # far beyond the end that this answer has by itself
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 60
    assert "<|" not in answer.choices[0].message.content


def test_a_repeated_prompt_is_found_in_a_replicas_cache_to_the_block(real):
    """With two replicas the third request must meet one that has seen the prompt."""
    before = sum(row["cached_tokens_total"] for row in real.replicas().values())
    words = " ".join(f"item {number} costs {number * 7} coins," for number in range(60))
    messages = [
        {"role": "system", "content": f"Ledger {uuid.uuid4()}."},
        {"role": "user", "content": words},
    ]
    client = real.client()
    usages = [
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2).usage for _ in range(3)
    ]
    prompt = usages[0].prompt_tokens
    assert {usage.prompt_tokens for usage in usages} == {prompt}
    hit = (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]
    assert cached[0] == 0
    assert set(cached) == {0, hit}
    assert cached[2] == hit
    wait_until(
        lambda: sum(row["cached_tokens_total"] for row in real.replicas().values()) - before == sum(cached),
        10,
        real.status,
    )


def test_logprobs_are_given_for_every_token_and_the_best_is_the_greedy_one(real):
    answer = real.client().chat.completions.create(**FRANCE, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith(answer.choices[0].message.content)
    assert len(entries) in {answer.usage.completion_tokens, answer.usage.completion_tokens - 1}
    for entry in entries:
        best = [top.logprob for top in entry.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == best[0] <= 0


async def test_two_clients_at_once_each_get_their_own_answer(real):
    wanted = {"France": "Paris", "Italy": "Rome"}

    async def one(country):
        async with real.async_client(timeout=120) as client:
            for _ in range(4):
                stream = await client.chat.completions.create(
                    **(FRANCE | ask(f"What is the capital of {country}?")), stream=True
                )
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
                assert wanted[country] in text
                assert not any(other in text for other in set(wanted.values()) - {wanted[country]})

    await asyncio.gather(*(one(country) for country in wanted))


def test_an_alias_is_answered_under_the_name_that_was_asked_for(real):
    answer = real.client().chat.completions.create(**(FRANCE | {"model": ALIAS}))
    assert answer.model == ALIAS
    assert "Paris" in answer.choices[0].message.content


def test_answers_streams_and_errors_have_request_ids(real):
    client = real.client()
    whole = client.chat.completions.with_raw_response.create(**FRANCE)
    assert whole.headers["x-request-id"].removeprefix("req_") == whole.parse().id.removeprefix("chatcmpl-")
    with client.chat.completions.with_streaming_response.create(**FRANCE, stream=True) as streamed:
        assert streamed.headers["x-request-id"].startswith("req_")
        assert list(streamed.iter_lines())[-2:] == ["data: [DONE]", ""]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**(FRANCE | {"model": "gpt-5"}))
    assert unknown.value.response.headers["x-request-id"].startswith("req_")


def nested(depth):
    return '{{"model": "{}", "messages": {}1{}}}'.format(MODEL, "[" * depth, "]" * depth)


LONE = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "\\ud800"}}]}}'
NAN = json.dumps(ask("hi"))[:-1] + ', "temperature": NaN}'
BAD = {
    "empty": (b"", 400, None, "empty_body"),
    "not JSON": (b"Hello", 400, None, "invalid_json"),
    "not UTF-8": (b'{"model": "\xff"}', 400, None, "invalid_json"),
    "an array": (b"[]", 400, None, "invalid_type"),
    "10,000 deep": (nested(10_000), 400, None, None),
    "a lone surrogate": (LONE, 400, "messages[0].content", "invalid_value"),
    "NaN": (NAN, 400, "temperature", "invalid_value"),
    "a wrong type": (json.dumps(ask("hi", max_tokens="9")), 400, "max_tokens", "invalid_value"),
    "out of range": (json.dumps(ask("hi", temperature=9)), 400, "temperature", "invalid_value"),
    "no messages": (json.dumps({"model": MODEL}), 400, "messages", "missing_required_parameter"),
    "no such role": (
        json.dumps({"model": MODEL, "messages": [{"role": "king", "content": "x"}]}),
        400,
        None,
        None,
    ),
    "no such model": (json.dumps(ask("hi") | {"model": "gpt-5"}), 404, "model", "model_not_found"),
    "10 MB": (json.dumps(ask("x" * 10_000_000)), 413, "body", "request_too_large"),
    "too long a context": (
        json.dumps(ask("word " * CONTEXT_TOKENS)),
        400,
        "messages",
        "context_length_exceeded",
    ),
    "too long an answer": (
        json.dumps(ask("hi", max_tokens=CONTEXT_TOKENS)),
        400,
        "max_completion_tokens",
        "context_length_exceeded",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_openais_shape_and_the_server_goes_on(real, what):
    body, status, param, code = BAD[what]
    answer = real.post(body)
    assert answer.status_code == status
    check_error(answer, param, code)
    assert real.post(json.dumps(ask("hi", max_tokens=1))).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer sk-wrong", "Basic c2s6", "Bearer \xfc", "Bearer " + "k" * 5000],
)
def test_a_missing_or_wrong_key_is_a_401(real, authorization):
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    answer = httpx.post(f"{real.url}/v1/chat/completions", json=FRANCE, headers=headers)
    assert answer.status_code == 401
    check_error(answer, None, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


def check_error(answer, param, code):
    """OpenAI's shape; what stands in a table above is checked, None there is left open."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("stream", [True, False], ids=["mid-stream", "waiting for a whole answer"])
async def test_a_client_that_leaves_stops_the_engine_at_once(real, sink, figure, stream):
    cores = {name: real.engine_core(name).pid for name in real.replicas()}
    reached_s, stopped_s = [], []
    for _ in range(3):
        name = f"leaver-{uuid.uuid4()}"
        left_s = await leave_in_the_middle(real, name, stream=stream)
        samples = [(time.time(), sum(map(cpu_s, cores.values())))]
        while samples[-1][0] < left_s + 1.5:
            await asyncio.sleep(0.005)
            samples.append((time.time(), sum(map(cpu_s, cores.values()))))
        (span,) = [s for s in sink.of_client(name, {"replica.generate"}) if s.name == "replica.generate"]
        reached_s.append(span.end_s - left_s)
        stopped_s.append(last_work_s(samples) - left_s)
    figure(
        f"the abort reached the engine after {milliseconds(reached_s)} ms, its last work {milliseconds(stopped_s)} ms"
    )
    real.wait_until_idle(5)
    assert sorted(reached_s)[1] < 0.2
    assert sorted(stopped_s)[1] < 0.5
    made = [row["generated_tokens_total"] for row in real.replicas().values()]
    await asyncio.sleep(1)
    assert sum(row["generated_tokens_total"] for row in real.replicas().values()) <= sum(made) + 2  # canaries


async def leave_in_the_middle(real, name, *, stream):
    """When it left, in Unix seconds."""
    body = ask("Tell me everything.", max_tokens=6000, extra_body={"ignore_eos": True})
    async with real.async_client(timeout=120, default_headers={"x-request-id": name}) as client:
        asking = asyncio.create_task(client.chat.completions.create(**body, stream=stream))
        if stream:
            answer = await asking
            for _ in range(8):
                await anext(answer)
            left_s = time.time()
            await answer.close()
            return left_s
        async with asyncio.timeout(60):
            while not sum(row["running"] for row in real.replicas().values()):
                await asyncio.sleep(0.05)
        left_s = time.time()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    return left_s


def milliseconds(seconds):
    return ", ".join(f"{second * 1000:.0f}" for second in seconds)


def test_the_engines_own_span_stands_in_the_requests_trace(real, sink):
    trace_id, caller_id = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    answer = real.post(json.dumps(FRANCE), traceparent=f"00-{trace_id}-{caller_id}-01")
    names = {"gateway.request", "replica.generate", "llm_request", f"route_to_replica {POOL} generate"}
    spans = {s.name: s for s in sink.of_request(answer.headers["x-request-id"], names)}
    assert {span.trace_id for span in spans.values()} == {trace_id}
    assert spans["llm_request"].parent_id == spans["replica.generate"].span_id
    assert (
        spans["llm_request"].attributes["gen_ai.usage.completion_tokens"]
        == answer.json()["usage"]["completion_tokens"]
    )


def test_a_streams_events_are_chunks_and_one_done(real):
    events = frames(real.post(json.dumps(FRANCE | {"stream": True})).text)
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = [json.loads(event) for event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
