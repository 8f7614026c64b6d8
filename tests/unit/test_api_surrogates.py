"""Half of a surrogate pair is refused by its place, mended in a history's arguments, and never an error of ours."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.api import surrogates
from dayzero.api.body import decode
from dayzero.api.chat.request import decoder, mendable
from dayzero.api.errors import BodyError

CALLED = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def body(**changes):
    """json.dumps writes a half as its escape."""
    base = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    return json.dumps(base | changes).encode()


def calling(arguments):
    called = CALLED | {"function": {"name": "look", "arguments": arguments}}
    return body(messages=[{"role": "assistant", "tool_calls": [called]}])


def arguments_of(request):
    return request.messages[0].tool_calls[0].function.arguments


@pytest.mark.parametrize("half", ["x\ud83d", "\ude00y", "\ud83d\ud83d and more", "\ud83d\\u0041"])
@pytest.mark.parametrize(
    ("place", "param"),
    [
        (lambda t: body(messages=[{"role": "user", "content": t}]), "messages[0].content"),
        (
            lambda t: body(messages=[{"role": "user", "content": [{"type": "text", "text": t}]}]),
            "messages[0].content[0].text",
        ),
        (
            lambda t: body(messages=[{"role": "tool", "tool_call_id": "c", "content": t}]),
            "messages[0].content",
        ),
        (lambda t: body(messages=[{"role": "user", "content": "", "name": t}]), "messages[0].name"),
        (
            lambda t: body(messages=[{"role": "assistant", "content": "", "reasoning_content": t}]),
            "messages[0].reasoning_content",
        ),
        (
            lambda t: body(tools=[{"function": {"name": "look", "description": t}}]),
            "tools[0].function.description",
        ),
        (
            lambda t: body(tools=[{"function": {"name": "look", "parameters": {"d": [t]}}}]),
            "tools[0].function.parameters.d[0]",
        ),
        (
            lambda t: body(tools=[{"function": {"name": "look", "parameters": {t: 1}}}]),
            "tools[0].function.parameters",
        ),
        (lambda t: body(model=t), "model"),
        (lambda t: body(stop=["a", t]), "stop[1]"),
        (lambda t: body(prompt_cache_key=t), "prompt_cache_key"),
        (lambda t: json.dumps(t).encode(), None),
    ],
)
def test_half_a_pair_in_text_is_a_400_that_names_the_place(half, place, param):
    with pytest.raises(BodyError) as refused:
        decode(place(half), decoder, mendable)
    assert refused.value.status == 400
    assert refused.value.param == param


@pytest.mark.parametrize(
    "text", ['{"a": "\ud83d"}', "\ude00", "not json \ud83d\ud83d", '{"\udfff": "\ufdd0"}']
)
def test_half_a_pair_in_a_historys_arguments_becomes_the_replacement_character(text):
    request = decode(calling(text), decoder, mendable)
    assert arguments_of(request) == "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_a_large_history_is_mended_too():
    filler = [{"role": "user", "content": "x" * 1000}] * 3000
    called = CALLED | {"function": {"name": "look", "arguments": '{"a": "\ud83d"}'}}
    raw = body(messages=[{"role": "assistant", "tool_calls": [called]}, *filler])
    assert len(raw) > 3_000_000
    assert arguments_of(decode(raw, decoder, mendable)) == '{"a": "\ufffd"}'


def test_what_only_looks_like_half_a_pair_is_left_as_it_is():
    text = '{"a": "\\ud83d"}'  # the escape of an escape: the arguments' own JSON, which the frontend reads
    assert arguments_of(decode(calling(text), decoder, mendable)) == text
    mixed = text + "\ud83d"
    assert arguments_of(decode(calling(mixed), decoder, mendable)) == text + "\ufffd"


def test_a_mended_body_is_held_to_the_same_shape():
    called = CALLED | {"function": {"name": "look", "arguments": "\ud83d"}}
    with pytest.raises(BodyError) as refused:
        decode(body(messages=[{"role": "assistant", "tool_calls": [called]}], n=2), decoder, mendable)
    assert refused.value.param == "n"


@given(st.text(st.characters(categories=["Cs", "Ll", "Po", "Cn"]), max_size=12))
def test_any_text_in_arguments_arrives_with_nothing_changed_but_its_halves(text):
    read = json.loads(json.dumps(text))  # halves that stand together become one character
    mended = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in read)
    assert arguments_of(decode(calling(text), decoder, mendable)) == mended


@pytest.mark.parametrize("fault", [b'"\\ud83d"', b"NaN"])
def test_one_long_key_over_many_values_costs_their_sum(fault):
    """Spelling the place of each value would take some 80 GB here."""
    raw = b'{"' + b"k" * 400_000 + b'": [' + b"[]," * 200_000 + fault + b"]}"
    with pytest.raises(BodyError) as refused:
        decode(raw, decoder, mendable)
    assert refused.value.param.startswith("kkk")
    assert len(refused.value.message) < 1000


ESCAPES = ["\\\\", "\\n", "\\u0041", "\\ud83d", "\\ude00", "\\uD83D\\uDE00", "\\ud7ff", "x", "é" * 9]


@given(st.lists(st.sampled_from(ESCAPES), max_size=40).map("".join), st.integers(12, 40))
def test_halves_are_found_wherever_a_window_ends(text, window_bytes):
    raw = f'["{text}"]'.encode()
    found = [at for at, is_half in surrogates.steps(raw, window_bytes) if is_half]
    assert found == list(surrogates.halves(raw))
    assert len(found) == sum("\ud800" <= c <= "\udfff" for c in json.loads(raw)[0])
    assert all(raw[at : at + 3].lower() == b"\\ud" for at in found)


@pytest.mark.parametrize("text", ["x", "\\n", "\\\\", "\\u00e9", "\\ud83d\\ude00", "é", "\\ud83dx"])
def test_no_step_reads_more_than_a_window(text):
    """A step holds the interpreter; between two, an event loop has it."""
    raw = f'["{text * 100_000}'.encode()  # never closed
    ends = [end for end, _ in surrogates.steps(raw)]
    assert ends[-1] == len(raw)
    assert max(after - before for before, after in pairwise([0, *ends])) <= surrogates.WINDOW_BYTES + 6


def test_a_body_of_halves_is_refused_and_not_mended_one_by_one():
    raw = calling("\ud83d" * surrogates.MAX_HALVES)
    assert arguments_of(decode(raw, decoder, mendable)) == "\ufffd" * surrogates.MAX_HALVES
    with pytest.raises(BodyError) as refused:
        decode(calling("\ud83d" * (surrogates.MAX_HALVES + 1)), decoder, mendable)
    assert refused.value.status == 400
