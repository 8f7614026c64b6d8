"""Kimi K3 through /v1/chat/completions: reasoning, calls, both places of usage, and the contract's refusals."""

import itertools
import json

import pytest

from dayzero.engine.types import Finish
from dayzero.errors import InvalidRequestError
from dayzero.testing.scripted_engine import ScriptedEngine
from tests.integration.gateways import MODEL
from tests.integration.kimi_k3_gateways import (
    END_OF_TURN,
    ONE,
    THOUGHT,
    TOOL,
    TWO,
    answered,
    chunks,
    engine_saying,
    post,
    serving_k3,
)
from tests.unit.kimi_k3.answers import CLOSE, END, C, O, call, ids_of


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_text_and_a_call_arrive_each_in_its_field(k3, stream):
    engine = engine_saying(k3, THOUGHT, O("tools"), ONE, C("tools"), END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        message, reason = await answered(served, stream=stream, tools=[TOOL])
        assert message["reasoning_content"] == "let me see"
        assert message["content"] == "Well, "
        (made,) = message["tool_calls"]
        assert made["id"] == "functions.look:0"
        assert made["function"]["name"] == "look"
        assert json.loads(made["function"]["arguments"]) == {"q": 'Oslo "N"\n'}
        assert reason == "tool_calls"
        await served.check_nothing_is_left()


async def test_string_arguments_stream_while_they_are_made(k3):
    long = call("look", ("q", "string", "word " * 200))
    async with serving_k3(
        engine_saying(k3, THOUGHT, O("tools"), long, C("tools"), END_OF_TURN), k3
    ) as served:
        frames = await chunks(served, tools=[TOOL])
        pieces = [
            piece["function"]["arguments"]
            for frame in frames
            for choice in frame["choices"]
            for piece in choice["delta"].get("tool_calls", ())
        ]
        assert len(pieces) > 50
        assert json.loads("".join(pieces)) == {"q": "word " * 200}


async def test_usage_stands_in_both_places_asked_for_or_not(k3):
    async with serving_k3(engine_saying(k3, THOUGHT, END_OF_TURN), k3) as served:
        body = (await post(served)).json()
        usage = body["usage"]
        said = ids_of(k3.tokenizer, THOUGHT, END_OF_TURN)
        thought = ids_of(k3.tokenizer, "let me see")
        assert usage == {
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": len(said),
            "total_tokens": usage["prompt_tokens"] + len(said),
            "cached_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": len(thought)},
        }
        frames = await chunks(served)
        assert frames[-1]["choices"][0]["finish_reason"] == "stop"
        assert frames[-1]["usage"] == frames[-1]["choices"][0]["usage"] == usage
        assert not any("usage" in frame or "usage" in frame["choices"][0] for frame in frames[:-1])
        asked = await chunks(served, stream_options={"include_usage": True})
        assert asked[-1]["choices"] == []
        assert asked[-1]["usage"] == asked[-2]["usage"] == asked[-2]["choices"][0]["usage"] == usage


async def test_the_bill_leaves_out_the_tokens_that_open_the_last_channel(k3):
    engine = engine_saying(k3, THOUGHT, END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        usage = (await post(served)).json()["usage"]
        assert usage["prompt_tokens"] == engine.requests[0].prompt_tokens - 3


async def test_an_engine_gets_the_models_fixed_sampling_and_its_default_limit(k3):
    engine = engine_saying(k3, THOUGHT, END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        await post(served)
        await post(served, max_tokens=7)
        first, second = (request.sampling for request in engine.requests)
        assert (first.temperature, first.top_p, first.max_tokens) == (1.0, 0.95, 131_072)
        assert first.stop_token_ids == k3.stop_ids
        assert second.max_tokens == 7
        assert engine.requests[0].salt


async def test_the_default_limit_is_bounded_by_the_room(k3):
    engine = engine_saying(k3, THOUGHT, END_OF_TURN)
    async with serving_k3(engine, k3, max_model_tokens=4096) as served:
        await post(served)
        (request,) = engine.requests
        assert request.sampling.max_tokens == 4096 - request.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]},
            "messages[0].tool_call_id",
        ),
    ],
)
async def test_what_the_contract_forbids_never_reaches_an_engine(k3, fields, param):
    engine = engine_saying(k3, THOUGHT, END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        answer = await post(served, **fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert engine.requests == []


async def test_an_engine_without_grammars_is_told_of_by_the_field_that_needed_one(k3):
    engine = ScriptedEngine(lambda _: [InvalidRequestError.of("grammar", "this engine knows no grammars")])
    async with serving_k3(engine, k3) as served:
        answer = await post(served, tools=[TOOL], tool_choice="required")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


MATRIX = {
    "no call": (THOUGHT, END_OF_TURN),
    "one call": (THOUGHT, O("tools"), ONE, C("tools"), END_OF_TURN),
    "two calls": (THOUGHT, O("tools"), *TWO, C("tools"), END_OF_TURN),
    "think not closed": ("hm", O("tools"), ONE, C("tools"), END_OF_TURN),
    "no wrapper": (THOUGHT, ONE, END_OF_TURN),
    "not json": (THOUGHT, O("tools"), call("look", ("q", "number", "1e")), C("tools"), END_OF_TURN),
    "no name": (THOUGHT, O("tools"), O("call"), C("call"), C("tools"), END_OF_TURN),
    "unknown tool": (THOUGHT, O("tools"), call("nobody"), C("tools"), END_OF_TURN),
    "broken markers": (THOUGHT, O("tools"), CLOSE, O("argument"), "x", CLOSE, END),
}
CHOICES = ["auto", "required", "none", {"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize("said", MATRIX, ids=str)
async def test_finish_reason_is_tool_calls_exactly_when_calls_were_sent(k3, said):
    engine = engine_saying(k3, *MATRIX[said])
    async with serving_k3(engine, k3) as served:
        for choice, parallel in itertools.product(CHOICES, [True, False]):
            fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": parallel}
            buffered = await answered(served, stream=False, **fields)
            assert buffered == await answered(served, stream=True, **fields)
            message, reason = buffered
            assert reason in ("tool_calls", "stop")
            assert (reason == "tool_calls") == bool(message["tool_calls"])
            if choice == "none":
                assert not message["tool_calls"]
            if said in ("one call", "no wrapper", "think not closed") and choice != "none":
                assert len(message["tool_calls"]) == 1
            if said == "two calls" and choice != "none":
                assert len(message["tool_calls"]) == (2 if parallel else 1)
            for made in message["tool_calls"]:
                json.loads(made["function"]["arguments"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_the_limit_cuts_ends_with_length(k3, stream):
    cut = (THOUGHT, O("tools"), O('call tool="look" index="1"'), O('argument key="q" type="string"'), "Os")
    async with serving_k3(engine_saying(k3, *cut, finish=Finish.LENGTH), k3) as served:
        message, reason = await answered(served, stream=stream, tools=[TOOL])
        assert reason == "length"
        assert message["tool_calls"][0]["function"]["arguments"] == '{"q": "Os'


async def test_calls_without_any_tool_are_dropped_named_and_counted(k3):
    engine = engine_saying(k3, "hm", O("tools"), ONE, C("tools"), END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        message, reason = await answered(served, stream=False)
        assert (message["tool_calls"], reason) == ([], "stop")
        (settlement,) = await served.settled()
        assert "tools_not_expected" in settlement.degraded
        metrics = served.gateway.metrics_text().decode()
        for oddity in settlement.degraded:
            assert f'degraded_answers_total{{model="{MODEL}",oddity="{oddity}"}} 1.0' in metrics
        assert "Oslo" not in metrics


async def test_the_fleet_file_says_how_long_an_answer_is_where_a_request_does_not(k3):
    engine = engine_saying(k3, THOUGHT, END_OF_TURN)
    async with serving_k3(engine, k3, default_max_tokens=77) as served:
        await post(served)
    assert [request.sampling.max_tokens for request in engine.requests] == [77]


async def test_metrics_tell_what_is_remembered_of_prompts_and_what_may_be(k3):
    async with serving_k3(engine_saying(k3, THOUGHT, END_OF_TURN), k3) as served:
        await post(served)
        metrics = served.gateway.metrics_text().decode()
    values = dict(
        line.rsplit(" ", 1) for line in metrics.splitlines() if "frontend_cache" in line and line[0] != "#"
    )
    held, bound = (
        float(values[f'dayzero_gateway_frontend_cache_{what}{{model="{MODEL}"}}'])
        for what in ("bytes", "bound_bytes")
    )
    assert 0 < held < bound == 320 * 1024**2
