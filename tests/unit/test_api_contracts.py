"""What Kimi K3's contract refuses, each by its field, and what it takes; a chat-template model's stays OpenAI's."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.api.body import decode
from dayzero.api.chat.conversation import conversation, parameters, sampling
from dayzero.api.chat.request import ChatCompletionRequest, decoder, mendable
from dayzero.api.contracts import MOONSHOT, OPENAI, contract_of
from dayzero.api.errors import BodyError
from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import Role, Thinking, ToolChoiceMode

USER = {"role": "user", "content": "hi"}
LONGEST = f"functions.{'n' * 256}:999999999"


def tool(name="look", **function):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}} | function}


def dynamic(*names, **message):
    return {"role": "system", "content": "", "tools": [tool(name) for name in names]} | message


def call(call_id="functions.look:0", arguments="{}", name="look"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*calls, **message):
    return {"role": "assistant", "content": None, "tool_calls": list(calls)} | message


def result(call_id="functions.look:0", **message):
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"} | message


def ask(contract=MOONSHOT, **fields):
    """A request body all the way to its conversation, as a gateway makes it."""
    request = decode(json.dumps({"model": "m", "messages": [USER]} | fields).encode(), decoder)
    parameters(request)
    return conversation(request, contract)


def shaped(**json_schema):
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 1.01}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_p": 1.0}, "top_p"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"n": 2}, "n"),
        ({"top_k": 40}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 1_048_577}, "max_completion_tokens"),
        ({"stop": ["a"] * 6}, "stop"),
        ({"stop": ["é" * 17]}, "stop[0]"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"reasoning_effort": "Low"}, "reasoning_effort"),
        ({"reasoning_effort": ""}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"thinking": {"type": "adaptive"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "effort": "huge"}}, "thinking.effort"),
        ({"thinking": {"keep": "some"}}, "thinking.keep"),
        ({"thinking": True}, "thinking"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": [tool()]}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [tool()]},
            "tool_choice.function.name",
        ),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("1st")]}, "tools[0].function.name"),
        ({"tools": [tool("-x")]}, "tools[0].function.name"),
        ({"tools": [tool("a.b")]}, "tools[0].function.name"),
        ({"tools": [tool("näme")]}, "tools[0].function.name"),
        ({"tools": [tool("look\n")]}, "tools[0].function.name"),
        ({"tools": [tool("x" * 257)]}, "tools[0].function.name"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name"),
        ({"tools": [tool(parameters="none")]}, "tools[0].function.parameters"),
        ({"tools": [tool()], "messages": [USER, dynamic("look")]}, "messages[1].tools[0].function.name"),
        ({"messages": [dynamic("a", "b"), dynamic("b"), USER]}, "messages[1].tools[0].function.name"),
        ({"messages": [dynamic("a b"), USER]}, "messages[0].tools[0].function.name"),
        ({"messages": [dynamic(), USER]}, "messages[0].tools"),
        ({"messages": [dynamic("a", content="and text"), USER]}, "messages[0].content"),
        (
            {"messages": [dynamic("a", content=[{"type": "text", "text": "x"}]), USER]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "system"}, USER]}, "messages[0].content"),
        ({"messages": [USER | {"tools": [tool()]}]}, "messages[0].tools"),
        ({"messages": [USER | {"tools": []}]}, "messages[0].tools"),
        ({"messages": [dynamic("a", role="developer"), USER]}, "messages[0].tools"),
        ({"messages": [USER, called(call()), {"role": "tool", "content": "x"}]}, "messages[2].tool_call_id"),
        ({"messages": [USER, called(call("i" * 513))]}, "messages[1].tool_calls[0].id"),
        ({"messages": [USER, result("i" * 513)]}, "messages[1].tool_call_id"),
        ({"messages": [USER, called(call(name="n" * 513))]}, "messages[1].tool_calls[0].function.name"),
        ({"messages": [USER, result()]}, "messages[1].tool_call_id"),
        ({"messages": [USER, called(call()), result("other")]}, "messages[2].tool_call_id"),
        (
            {"messages": [USER, called(call()), result(), {"role": "assistant", "content": "k"}, result()]},
            "messages[4].tool_call_id",
        ),
        ({"messages": [called(call("a")), result("a"), called(call("b")), result("a")]}, "messages[3].tool_call_id"),
        (
            {"messages": [USER, called(call("a"), call("b", "[1]"))]},
            "messages[1].tool_calls[1].function.arguments",
        ),
        ({"messages": [called(call(arguments='"text"')), result()]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [called(call(arguments=" 12 ")), result()]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [called(call(arguments="null")), result()]}, "messages[0].tool_calls[0].function.arguments"),
        (
            {"messages": [USER, called(call(arguments="[" * 100_000)), result()]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"messages": [USER | {"partial": True}]}, "messages[0].partial"),
        ({"messages": [USER | {"partial": "yes"}, USER]}, "messages[0].partial"),
        ({"messages": [dynamic("a", partial=True), USER]}, "messages[0].partial"),
        ({"messages": [{"role": "assistant", "content": "I", "partial": True}, USER]}, "messages[0].partial"),
        ({"messages": [USER, called(call(), partial=True)]}, "messages[1].partial"),
        ({"messages": [USER, {"role": "assistant", "content": "I", "partial": "yes"}]}, "messages[1].partial"),
        (shaped(name="", schema={}), "response_format.json_schema.name"),
        (shaped(schema={}), "response_format.json_schema.name"),
        (shaped(name="n"), "response_format.json_schema.schema"),
        (shaped(name="n", schema="object"), "response_format.json_schema.schema"),
        (shaped(name="n", schema={}, strict="yes"), "response_format.json_schema.strict"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)  # fmt: skip
def test_what_kimi_k3_forbids_is_a_400_that_names_the_field(k3, fields, param):
    with pytest.raises(InvalidRequestError) as refused:
        k3.render(ask(**fields), scope="")
    assert refused.value.status == 400
    assert refused.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1},
        {"top_p": 0.95},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "n": 1},
        {"top_k": -1, "min_p": 0, "repetition_penalty": 1.0, "logit_bias": {}},
        {"seed": 5, "logprobs": True, "top_logprobs": 3, "min_tokens": 2, "ignore_eos": True},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tools": [tool("_x-9"), tool("y" * 256)], "tool_choice": "required"},
        {"messages": [dynamic("a"), USER], "tool_choice": "required"},
        {"messages": [dynamic("a", content=None), USER]},
        {"messages": [dynamic("a", content=[{"type": "text", "text": ""}]), USER]},
        {"messages": [dynamic("a"), USER], "tool_choice": {"type": "function", "function": {"name": "a"}}},
        {"messages": [USER | {"partial": False}]},
        {"messages": [USER, {"role": "assistant", "content": "I am", "partial": True}]},
        {"messages": [USER, called(call("a"), call("b")), result("b"), USER, result("a")]},
        {"messages": [USER, called(call("a"), call("a")), result("a"), result("a")]},
        {"messages": [USER, called(call("a"))]},
        {"messages": [USER, called(call(LONGEST, name="n" * 256)), result(LONGEST)]},
        {"messages": [USER, called(call(arguments=None), content=""), result()]},
        {"messages": [USER, called(call(arguments=" \n")), result()]},
        {"messages": [USER, called(call(arguments='{"cut": ')), result()]},
        {"messages": [USER, called(call(arguments="not json")), result()]},
        {"thinking": {"type": "enabled", "keep": "all", "budget_tokens": 9}},
        {"max_completion_tokens": 262_144},
        shaped(name="n", schema={"type": "object"}, strict=True),
    ],
)
def test_what_kimi_k3_allows_becomes_a_prompt(k3, fields):
    assert k3.render(ask(**fields), scope="").tokens


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking(effort="max")),
        ({"reasoning_effort": None, "thinking": None}, Thinking(effort="max")),
        ({"reasoning_effort": "low"}, Thinking(effort="low")),
        ({"reasoning_effort": "high"}, Thinking(effort="high")),
        ({"reasoning_effort": "max"}, Thinking(effort="max")),
        ({"reasoning_effort": "minimal"}, Thinking(effort="low")),
        ({"reasoning_effort": "medium"}, Thinking(effort="high")),
        ({"reasoning_effort": "xhigh"}, Thinking(effort="max")),
        ({"reasoning_effort": "none"}, Thinking(enabled=False)),
        ({"thinking": {}}, Thinking(effort="max")),
        ({"thinking": {"type": "enabled"}}, Thinking(effort="max")),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, Thinking(effort="low")),
        ({"thinking": {"effort": "high"}, "reasoning_effort": "low"}, Thinking(effort="high")),
        ({"thinking": {"effort": "low"}, "reasoning_effort": "none"}, Thinking(effort="low")),
        ({"thinking": {"effort": "none"}, "reasoning_effort": "max"}, Thinking(enabled=False)),
        ({"thinking": {"type": "disabled"}}, Thinking(enabled=False)),
        ({"thinking": {"type": "disabled", "effort": "max"}}, Thinking(enabled=False)),
    ],
)
def test_efforts_are_in_the_models_own_words(fields, thinking):
    assert ask(**fields).thinking == thinking


def test_sampling_has_the_models_fixed_values():
    request = decode(json.dumps({"model": "m", "messages": [USER]}).encode(), decoder)
    plain = sampling(request, max_tokens=9, stop_ids=(2,), contract=MOONSHOT)
    assert (plain.temperature, plain.top_p) == (1.0, 0.95)
    assert (plain.presence_penalty, plain.frequency_penalty, plain.repetition_penalty) == (0, 0, 1)
    assert (plain.top_k, plain.min_p) == (0, 0)


def test_tools_of_a_message_stay_with_it_and_may_be_chosen():
    talk = ask(
        messages=[USER, dynamic("late"), USER],
        tools=[tool("early")],
        tool_choice={"type": "function", "function": {"name": "late"}},
    )
    assert [t.name for t in talk.tools] == ["early"]
    assert [t.name for t in talk.messages[1].tools] == ["late"]
    assert talk.messages[1].content == () or talk.messages[1].text == ""
    assert talk.tool_choice.mode is ToolChoiceMode.NAMED


@pytest.mark.parametrize(
    "spelling",
    [
        {"reasoning_content": "first, then"},
        {"reasoning": "first, then"},
        {"reasoning_content": "", "reasoning": "first, then"},
        {"reasoning_content": "first, then", "reasoning": "another"},
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "first, "},
                {"type": "reasoning.encrypted", "data": "xyz"},
                {"type": "reasoning.text", "text": "then"},
            ]
        },
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "first, then"}]},
    ],
)
def test_reasoning_in_the_history_is_read_however_it_is_spelled(spelling):
    talk = ask(messages=[USER, called(call(), **spelling), result()])
    assert talk.messages[1].reasoning == "first, then"


@pytest.mark.parametrize("spelling", [{}, {"reasoning_content": None}, {"reasoning_details": []}])
def test_a_history_without_reasoning_is_no_error(spelling):
    assert not ask(messages=[USER, called(call(), **spelling), result()]).messages[1].reasoning


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_every_form_of_no_content_beside_calls_is_the_same_message(content):
    message = {"role": "assistant", "tool_calls": [call()]} | content
    assert ask(messages=[USER, message, result()]).messages[1].text == ""


def test_a_historys_arguments_are_read_once_and_by_the_frontend():
    talk = ask(messages=[USER, called(call(arguments="[1]")), result()])
    assert talk.messages[1].tool_calls[0].arguments == "[1]"


def test_a_partial_message_is_told_to_the_frontend():
    talk = ask(messages=[USER, {"role": "assistant", "content": "I am", "partial": True}])
    assert talk.messages[-1].partial
    assert talk.messages[-1].role is Role.ASSISTANT


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2, "top_p": 0.5, "presence_penalty": 1, "top_k": 5, "logit_bias": {"5": 1}},
        {"thinking": {"type": "whatever"}, "reasoning_effort": "extreme"},
        {"messages": [USER | {"partial": True, "tools": [tool()]}]},
        {"messages": [USER, result("nobody")]},
        {"messages": [called(call(arguments="[1]")), result()]},
    ],
)
def test_a_chat_template_model_keeps_openais_contract(fields):
    talk = ask(OPENAI, **fields)
    assert not any(message.partial or message.tools for message in talk.messages)


def test_a_chat_template_models_thinking_is_what_it_was():
    assert ask(OPENAI).thinking == Thinking(effort=None)
    assert ask(OPENAI, reasoning_effort="none").thinking == Thinking(enabled=False, effort="none")
    with pytest.raises(InvalidRequestError) as refused:
        ask(OPENAI, messages=[{"role": "system"}])
    assert refused.value.param == "messages[0].content"


def test_the_contract_is_chosen_by_the_frontends_kind():
    assert contract_of("chat_template") is OPENAI
    assert contract_of("kimi_k3") is MOONSHOT


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.text(max_size=3)
    | st.sampled_from(["{}", "[1]", "look"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
FIELDS = [
    "content",
    "tools",
    "tool_calls",
    "tool_call_id",
    "partial",
    "reasoning",
    "reasoning_details",
    "name",
]


@given(
    st.lists(
        st.builds(
            lambda role, base, odd: base | odd | {"role": role},
            st.sampled_from([role.value for role in Role]),
            st.sampled_from([{"content": ""}, {"content": "x"}, result(), called(call()), dynamic("a")]),
            st.dictionaries(st.sampled_from(FIELDS), anything, max_size=2),
        ),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(sorted(ChatCompletionRequest.__struct_fields__)), anything, max_size=2),
)
def test_any_messages_make_a_prompt_or_a_400(k3, messages, fields):
    for contract in (MOONSHOT, OPENAI):
        try:
            assert k3.render(ask(contract, **{"messages": messages} | fields), scope="").tokens
        except InvalidRequestError as refused:
            assert refused.status == 400


def test_a_tool_is_shown_to_the_model_as_the_client_declared_it():
    """Fields that are unknown here, nulls and a missing type included."""
    declared = {
        "function": {
            "name": "f",
            "description": None,
            "x-vendor": 1.0,
            "parameters": {"b": 10**30, "a": 1e16},
        },
        "cache_control": {"type": "ephemeral"},
    }
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}], "tools": [declared]}
    (tool,) = conversation(decode(json.dumps(body).encode(), decoder, mendable), MOONSHOT).tools
    assert tool.spec == declared


def test_what_is_wrong_within_a_tool_is_named_from_the_body_on():
    tool = {"type": "function", "function": {"name": 5}}
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}], "tools": [tool]}
    with pytest.raises(BodyError) as caught:
        decode(json.dumps(body).encode(), decoder, mendable)
    assert caught.value.param == "tools[0].function.name"
