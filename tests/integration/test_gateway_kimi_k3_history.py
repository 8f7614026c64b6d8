"""Kimi K3's history through /v1/chat/completions: what clients send back, however they spell it."""

import asyncio
import json

import httpx
import pytest

from dayzero.gateway.service import CanaryPolicy
from dayzero.testing.scripted_engine import ScriptedEngine, say
from tests.integration.kimi_k3_gateways import (
    ASK,
    END_OF_TURN,
    ONE,
    THOUGHT,
    TOOL,
    TWO,
    answered,
    engine_saying,
    post,
    prompt_of,
    prompts,
    serving_k3,
)
from tests.unit.kimi_k3.answers import C, O, call, ids_of


async def test_what_we_answer_is_what_we_read_as_history(k3):
    """Round trip: the ids of a well-formed turn are the ids that the turn has in the next prompt."""
    tools = {"tools": [TOOL]}
    turn = {
        "role": "assistant",
        "content": "Well, ",
        "reasoning_content": "let me see",
        "tool_calls": [
            {"id": "x", "function": {"name": "look", "arguments": json.dumps({"q": q, "n": [1, 2.5]})}}
            for q in ('Oslo "N" & more\n', "日本 😀 <|close|>call<|sep|>")
        ],
    }
    first = prompt_of(k3, **tools)
    with_turn = prompt_of(k3, messages=[*ASK["messages"], turn], **tools)
    assert with_turn[: len(first)] == first
    said = with_turn[len(first) : with_turn.index(k3.stop_ids[0], len(first)) + 1]
    engine = ScriptedEngine(say(said))
    async with serving_k3(engine, k3) as served:
        message, reason = await answered(served, stream=False, **tools)
        assert reason == "tool_calls"
        results = [
            {"role": "tool", "tool_call_id": made["id"], "content": "ok"} for made in message["tool_calls"]
        ]
        again = [*ASK["messages"], {"role": "assistant", **message}, *results]
        second, _ = await answered(served, stream=True, messages=again, **tools)
        assert prompts(engine)[0] == first
        assert prompts(engine)[1][: len(first) + len(said)] == first + said
        assert [made["id"] for made in message["tool_calls"]] == ["functions.look:0", "functions.look:1"]
        assert [made["id"] for made in second["tool_calls"]] == ["functions.look:2", "functions.look:3"]


CALLED = [
    {"id": "functions.look:0", "type": "function", "function": {"name": "look", "arguments": '{"q": "a"}'}}
]
RESULT = {"role": "tool", "tool_call_id": "functions.look:0", "content": "ok"}


def history(*calls, results=(RESULT,), **message):
    assistant = {"role": "assistant", "content": None, "tool_calls": list(calls) or CALLED} | message
    return {"messages": [*ASK["messages"], assistant, *results], "tools": [TOOL]}


def test_reasoning_makes_one_prompt_however_a_client_spells_it(k3):
    spellings = [
        {"reasoning_content": "let me see"},
        {"reasoning": "let me see"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "let me see"}]},
        {"reasoning_content": None, "reasoning": "let me see"},
    ]
    told = [prompt_of(k3, **history(**spelling)) for spelling in spellings]
    assert all(ids == told[0] for ids in told)
    untold = [
        prompt_of(k3, **history(**none)) for none in ({}, {"reasoning_content": ""}, {"reasoning": " \n"})
    ]
    assert all(ids == untold[0] for ids in untold)
    assert untold[0] != told[0]


def test_a_prompt_does_not_depend_on_how_ids_are_spelled_or_results_are_ordered(k3):
    def talk(ids, order):
        calls = [
            {"id": one, "function": {"name": "look", "arguments": json.dumps({"q": str(i)})}}
            for i, one in enumerate(ids)
        ]
        results = [{"role": "tool", "tool_call_id": ids[i], "content": f"r{i}"} for i in order]
        return prompt_of(k3, **history(*calls, results=results))

    plain = talk(["functions.look:0", "functions.look:1"], [0, 1])
    assert talk(["call_abc", "call_2"], [0, 1]) == plain
    assert talk(["toolu_01", "toolu_02"], [1, 0]) == plain


@pytest.mark.parametrize("content", [None, "", []])
async def test_every_form_of_no_content_beside_calls_is_accepted(k3, content):
    engine = engine_saying(k3, THOUGHT, END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        assert (await post(served, **history(content=content))).status_code == 200
        assert prompts(engine) == [prompt_of(k3, **history())]


async def test_half_a_surrogate_pair_in_a_historys_arguments_is_mended_at_both_depths(k3):
    """As JSON of the body, and as JSON within that JSON."""

    def called(arguments):
        return history({"id": "c", "function": {"name": "look", "arguments": arguments}}, results=())

    engine = engine_saying(k3, THOUGHT, END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        for arguments in ('{"q": "x\ud83d"}', '{"q": "x\\ud83d"}'):
            body = json.dumps(ASK | called(arguments))
            async with httpx.AsyncClient(timeout=30, verify=False) as http:
                answer = await http.post(
                    f"{served.url}/v1/chat/completions", content=body, headers=served.headers
                )
            assert answer.status_code == 200, answer.text
        assert prompts(engine) == [prompt_of(k3, **called('{"q": "x\ufffd"}'))] * 2


async def test_tools_of_a_message_count_when_one_is_required(k3):
    engine = engine_saying(k3, THOUGHT, O("tools"), ONE, C("tools"), END_OF_TURN)
    messages = [{"role": "system", "content": "", "tools": [TOOL]}, *ASK["messages"]]
    async with serving_k3(engine, k3) as served:
        message, reason = await answered(served, stream=True, messages=messages, tool_choice="required")
        assert reason == "tool_calls"
        assert len(message["tool_calls"]) == 1


async def test_with_thinking_off_there_is_no_reasoning_and_calls_arrive(k3):
    engine = engine_saying(k3, "text", C("response"), O("tools"), *TWO, C("tools"), END_OF_TURN)
    async with serving_k3(engine, k3) as served:
        for fields in ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}):
            message, reason = await answered(served, stream=True, tools=[TOOL], **fields)
            assert (message["reasoning_content"], message["content"]) == ("", "text")
            assert (len(message["tool_calls"]), reason) == (2, "tool_calls")


async def test_a_partial_message_is_continued_where_it_ends(k3):
    engine = engine_saying(k3, " Kimi.", C("response"), END_OF_TURN)
    messages = [*ASK["messages"], {"role": "assistant", "content": "I am", "partial": True}]
    async with serving_k3(engine, k3) as served:
        message, _ = await answered(served, stream=False, messages=messages)
        assert (message["reasoning_content"], message["content"]) == ("", " Kimi.")
        (ids,) = prompts(engine)
        assert ids[-len(ids_of(k3.tokenizer, "I am")) :] == ids_of(k3.tokenizer, "I am")


async def test_a_canary_of_this_model_makes_its_gateway_ready(k3):
    canary = CanaryPolicy(period_s=0.1, timeout_s=5.0, max_tokens=1)
    engine = engine_saying(k3, "Yes")
    async with serving_k3(engine, k3, canary=canary) as served, httpx.AsyncClient(verify=False) as http:
        async with asyncio.timeout(5):
            while (await http.get(f"{served.url}/readyz")).status_code != 200:
                await asyncio.sleep(0.02)


async def test_the_longest_name_a_model_can_call_comes_back_in_the_history(k3):
    """Declared or not: what was sent is never refused later, its id included."""
    engine = engine_saying(
        k3, *THOUGHT, O("tools"), call("n" * 256, ("q", "string", "a")), C("tools"), *END_OF_TURN
    )
    async with serving_k3(engine, k3) as served:
        message, reason = await answered(served, stream=False, tools=[TOOL])
        assert reason == "tool_calls"
        (made,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": made["id"], "content": "ok"}
        again = [*ASK["messages"], {"role": "assistant", **message}, result]
        answer = await post(served, messages=again, tools=[TOOL])
        assert answer.status_code == 200, answer.text
