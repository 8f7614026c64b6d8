"""Bad bodies get a 400 in words, naming the field; nothing else comes out of `decode`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.api.body import MAX_DEPTH, check_depth, decode
from dayzero.api.chat.request import ChatCompletionRequest, decoder
from dayzero.api.errors import BodyError

GOOD = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def body(**changes):
    return json.dumps(GOOD | changes).encode()


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"  \n", None),
        (b"not json", None),
        (b"[]", None),
        (b'"text"', None),
        (b'{"model": "m"', None),
        (b"\xff\xfe", None),
        (b'{"model": "\xff"}', None),
        (body() + b" trailing", None),
        (b'{"model": "m", "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", None),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "model"),
        (body(model=1), "model"),
        (body(messages="x"), "messages"),
        (body(messages=[]), "messages"),
        (body(messages=[{"role": "nobody", "content": "x"}]), "messages[0].role"),
        (body(messages=[{"content": "x"}]), "messages[0].role"),
        (body(messages=[{"role": "user"}]), "messages[0].content"),
        (body(messages=[{"role": "user", "content": 5}]), "messages[0].content"),
        (body(messages=[{"role": "user", "content": []}]), "messages[0].content"),
        (body(messages=[{"role": "user", "content": [{"type": "sound"}]}]), "messages[0].content[0].type"),
        (body(messages=[{"role": "tool", "content": "x"}]), "messages[0].tool_call_id"),
        (body(max_tokens=0), "max_tokens"),
        (body(max_tokens="many"), "max_tokens"),
        (body(max_completion_tokens=-1), "max_completion_tokens"),
        (body(temperature=3), "temperature"),
        (body(temperature="hot"), "temperature"),
        (body(top_p=0), "top_p"),
        (body(n=2), "n"),
        (body(stream="yes"), "stream"),
        (body(stop=["a"] * 6), "stop"),
        (body(stop=[1]), "stop[0]"),
        (body(top_logprobs=21), "top_logprobs"),
        (body(seed=2**80), "seed"),
        (body(logit_bias={"1": 200}), "logit_bias[...]"),
        (body(logit_bias={str(i): 1 for i in range(5000)}), "logit_bias"),
        (body(tools=[{"type": "function", "function": {"name": "f"}}] * 1025), "tools"),
        (body(tools=[{"type": "function", "function": {"name": "has space"}}]), "tools[0].function.name"),
        (body(response_format={"type": "xml"}), "response_format.type"),
        (b'{"model": "m", "temperature": NaN, "messages": []}', "temperature"),
        (body()[:-1] + b', "temperature": -Infinity}', "temperature"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x\\ud83d"}]}', "messages[0].content"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ude00y"}]}', "messages[0].content"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "stop": "\\ud800"}', "stop"),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
            "seed",
        ),
    ],
)
def test_a_bad_body_is_refused_and_the_field_is_named(raw, param):
    with pytest.raises(BodyError) as refused:
        decode(raw, decoder)
    assert refused.value.status == 400
    assert refused.value.param == param
    assert refused.value.openai()["error"]["type"] == "invalid_request_error"


def test_an_error_never_repeats_what_was_sent():
    secret = "hunter2-canary"
    for raw in (
        body(model={"k": secret}),
        body(messages=[{"role": secret, "content": "x"}]),
        secret.encode(),
    ):
        with pytest.raises(BodyError) as refused:
            decode(raw, decoder)
        assert secret not in refused.value.message


def test_unknown_fields_are_ignored_as_clients_of_other_servers_send_them():
    request = decode(body(chat_template_kwargs={"a": 1}, store=True), decoder)
    assert request.model == "m"


@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_400(raw):
    try:
        request = decode(raw, decoder)
    except BodyError as e:
        assert e.status == 400
    else:
        assert isinstance(request, ChatCompletionRequest)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(st.characters(), max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.sampled_from(sorted(ChatCompletionRequest.__struct_fields__)), json_values)
def test_any_value_in_any_field_gives_a_request_or_a_400(name, value):
    raw = json.dumps(GOOD | {name: value}).encode()
    try:
        decode(raw, decoder)
    except BodyError as e:
        assert e.status == 400


def test_depth_is_counted_in_levels():
    def nested(levels):
        value = 1
        for level in range(levels):
            value = {"a": value} if level % 2 else [value]
        return value

    check_depth(nested(MAX_DEPTH), "tools")
    with pytest.raises(BodyError) as refused:
        check_depth(nested(MAX_DEPTH + 1), "tools[0].function.parameters")
    assert refused.value.param == "tools[0].function.parameters"
