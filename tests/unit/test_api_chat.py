"""Chat requests become conversations, and events become the frames that OpenAI's own types read."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from dayzero.api.body import decode
from dayzero.api.chat import frames, response
from dayzero.api.chat.conversation import conversation, grammar_param, parameters, sampling
from dayzero.api.chat.request import decoder
from dayzero.engine.errors import EngineDeadError
from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import ResponseFormatKind, Role, ToolChoiceMode
from dayzero.frontend.events import (
    Content,
    Finished,
    FinishReason,
    Reasoning,
    ToolArguments,
    ToolEnd,
    ToolStart,
    fold,
)

HEAD = frames.Head("chatcmpl-1", 1_700_000_000, "m")
USAGE = frames.Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def request(**fields):
    return decode(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields).encode(), decoder
    )


def test_every_role_and_content_form_arrives_in_the_conversation():
    asked = request(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "hi", "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
        tools=[TOOL],
    )
    talk = conversation(asked)
    assert [m.role for m in talk.messages] == [
        Role.SYSTEM, Role.DEVELOPER, Role.USER, Role.ASSISTANT, Role.TOOL,
    ]  # fmt: skip
    assert talk.messages[1].text == "ab"
    assert talk.messages[2].name == "ann"
    assert talk.messages[3].reasoning == "hm"
    assert talk.messages[3].tool_calls[0].name == "look"
    assert talk.messages[4].tool_call_id == "c1"
    assert talk.tools[0].spec["function"]["parameters"] == {"type": "object"}


def test_tool_choice_and_response_format_are_carried():
    named = conversation(
        request(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}})
    )
    assert (named.tool_choice.mode, named.tool_choice.name) == (ToolChoiceMode.NAMED, "look")
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    shaped = conversation(request(response_format=schema))
    assert shaped.response_format.kind is ResponseFormatKind.JSON_SCHEMA
    assert shaped.response_format.strict


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_a_conversation_that_cannot_be_is_refused_by_field(fields, param):
    with pytest.raises(InvalidRequestError) as refused:
        conversation(request(**fields))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": ["ok", "é" * 17]}, "stop[1]"),
    ],
)
def test_parameters_that_contradict_are_refused_by_field(fields, param):
    with pytest.raises(InvalidRequestError) as refused:
        parameters(request(**fields))
    assert refused.value.param == param


def test_sampling_has_openais_defaults_and_what_was_asked():
    plain = sampling(request(), max_tokens=9, stop_ids=(2,))
    assert (plain.temperature, plain.top_p, plain.max_tokens, plain.stop_token_ids) == (1.0, 1.0, 9, (2,))
    assert plain.logprobs is None
    asked = sampling(
        request(temperature=0, seed=5, logprobs=True, top_logprobs=3, logit_bias={"17": -100}),
        max_tokens=9,
        stop_ids=(),
    )
    assert (asked.temperature, asked.seed, asked.logprobs, asked.logit_bias) == (0.0, 5, 3, {17: -100.0})


def test_an_answer_that_ignores_its_end_is_not_stopped_at_it():
    assert sampling(request(ignore_eos=True), max_tokens=9, stop_ids=(2,)).stop_token_ids == ()
    assert sampling(request(ignore_eos=False), max_tokens=9, stop_ids=(2,)).stop_token_ids == (2,)


EVENTS = [
    Reasoning("let me "),
    Reasoning("see"),
    Content("It is "),
    Content("so.\n\u2028"),
    ToolStart(0, "look"),
    ToolArguments(0, '{"a":'),
    ToolArguments(0, "1}"),
    ToolEnd(0),
    Finished(FinishReason.TOOL_CALLS),
]


def frames_of(raw: bytes):
    """Server-sent events → their data, parsed."""
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def accumulate(chunks):
    content = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    reasoning = "".join(c["choices"][0]["delta"].get("reasoning_content") or "" for c in chunks)
    arguments = "".join(
        call["function"].get("arguments", "")
        for c in chunks
        for call in c["choices"][0]["delta"].get("tool_calls", ())
    )
    return reasoning, content, arguments


@given(st.lists(st.integers(0, len(EVENTS)), max_size=6))
def test_streamed_frames_carry_the_buffered_answer_however_events_are_batched(cuts):
    writer = frames.ChunkWriter(HEAD)
    edges = [0, *sorted(cuts), len(EVENTS)]
    raw = b"".join(writer.events(EVENTS[a:b]) for a, b in itertools.pairwise(edges))
    chunks = frames_of(raw)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        msgspec.convert(chunk, response.ChatCompletionChunk)
    answer = fold(EVENTS)
    assert accumulate(chunks) == (answer.reasoning, answer.content, answer.tool_calls[0].arguments)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == [
        "tool_calls"
    ]


def test_the_buffered_answer_reads_with_openais_types():
    body = json.loads(frames.completion(HEAD, fold(EVENTS), USAGE, None))
    completion = ChatCompletion.model_validate(body, strict=False)
    msgspec.convert(body, response.ChatCompletion)
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.choices[0].message.tool_calls[0].id == "functions.look:0"
    assert completion.usage.prompt_tokens_details.cached_tokens == 3
    assert completion.usage.total_tokens == 12


def test_usage_and_errors_have_frames_of_their_own():
    writer = frames.ChunkWriter(HEAD)
    (usage,) = frames_of(writer.usage(USAGE))
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    (error,) = frames_of(writer.error(EngineDeadError("gone")))
    assert error["error"]["code"] == "engine_dead"


def test_an_answer_without_an_end_is_never_sent():
    with pytest.raises(ValueError, match="not complete"):
        frames.completion(HEAD, fold(EVENTS[:-1]), USAGE, None)


MOONSHOT_HEAD = frames.Head("chatcmpl-1", 1_700_000_000, "m", first_call=3, moonshot_usage=True)
THOUGHT = frames.Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3, reasoning_tokens=2)


def test_moonshots_last_frame_has_usage_in_both_places_and_the_others_have_none():
    writer = frames.ChunkWriter(MOONSHOT_HEAD)
    chunks = frames_of(writer.events(EVENTS[:4], None, USAGE) + writer.events(EVENTS[4:], None, THOUGHT))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        msgspec.convert(chunk, response.ChatCompletionChunk)
    last = chunks.pop()
    assert last["usage"] == last["choices"][0]["usage"] == THOUGHT.wire(moonshot=True)
    assert last["usage"]["cached_tokens"] == last["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert not any("usage" in chunk or "usage" in chunk["choices"][0] for chunk in chunks)


def test_openais_usage_has_its_own_fields_only():
    writer = frames.ChunkWriter(HEAD)
    chunks = frames_of(writer.events(EVENTS, None, THOUGHT))
    assert not any("usage" in chunk or "usage" in chunk["choices"][0] for chunk in chunks)
    assert "cached_tokens" not in json.loads(frames.completion(HEAD, fold(EVENTS), USAGE, None))["usage"]


def test_calls_are_numbered_over_the_conversation_and_indexed_within_the_answer():
    (called,) = [
        call
        for chunk in frames_of(frames.ChunkWriter(MOONSHOT_HEAD).events(EVENTS))
        for call in chunk["choices"][0]["delta"].get("tool_calls", ())
        if "id" in call
    ]
    assert (called["index"], called["id"]) == (0, "functions.look:3")
    body = json.loads(frames.completion(MOONSHOT_HEAD, fold(EVENTS), USAGE, None))
    assert body["choices"][0]["message"]["tool_calls"][0]["id"] == "functions.look:3"
    assert body["usage"]["cached_tokens"] == 3
    msgspec.convert(body, response.ChatCompletion)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, "response_format"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "look"}}}, "tool_choice"),
    ],
)
def test_a_grammar_that_an_engine_has_not_is_named_by_what_asked_for_it(fields, param):
    assert grammar_param(request(**fields)) == param
