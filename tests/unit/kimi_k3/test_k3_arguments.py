"""Arguments in the history: JSON as Python's, and whatever else clients send there."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.errors import FrontendError
from dayzero.frontend.kimi_k3.arguments import Argument, Unparsed, arguments_of
from dayzero.frontend.kimi_k3.python_json import DIGIT_LIMIT, SEPARATOR_LIMIT

PARAM = "messages[3].tool_calls[0].function.arguments"


def read(raw):
    return arguments_of(raw, PARAM)


@pytest.mark.parametrize("raw", ["", " ", "\n\t", "\u3000\u2028", "{}", " { } "])
def test_arguments_that_are_absent_blank_or_empty_are_none(raw):
    assert read(raw) == ()


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ('"a \\"b\\" \\n"', "string", 'a "b" \n'),
        ('""', "string", ""),
        ("true", "boolean", "true"),
        ("false", "boolean", "false"),
        ("null", "null", "null"),
        ("0", "number", "0"),
        ("-0", "number", "0"),
        ("1E2", "number", "100.0"),
        ("1e16", "number", "1e+16"),
        ("0.1e-6", "number", "1e-07"),
        ("9007199254740993", "number", "9007199254740993"),
        ("1e999", "number", "Infinity"),
        ("NaN", "number", "NaN"),
        ("-Infinity", "number", "-Infinity"),
        ('{"b":[1,{"é":null}],"a":"\\u00e9\\u2028"}', "object", '{"b": [1, {"é": null}], "a": "é\u2028"}'),
        ('["<|sep|>", "\\u0001"]', "array", '["<|sep|>", "\\u0001"]'),
        ("[]", "array", "[]"),
    ],
)
def test_a_value_is_written_as_python_writes_it(value, kind, text):
    assert read(f'{{"k":{value}}}') == (Argument("k", kind, text),)


def test_a_key_that_comes_twice_has_its_first_place_and_its_last_value():
    assert read('{"a": 1, "b": 2, "a": "x"}') == (Argument("a", "string", "x"), Argument("b", "number", "2"))


def test_keys_are_not_sorted():
    assert [argument.key for argument in read('{"z": 1, "a": 2, "": 3}')] == ["z", "a", ""]


@pytest.mark.parametrize(
    "raw",
    [
        '{"cmd": "ls',
        "{'a': 1}",
        "{a: 1}",
        '{"a": 1,}',
        '{"a": 1} {"b": 2}',
        "\ufeff{}",
        '{"a": "\n"}',
        "<|sep|>",
        "-",
    ],
)
def test_what_is_not_json_to_python_is_kept_as_it_is(raw):
    assert read(raw) == Unparsed(raw)


def test_an_integer_longer_than_python_reads_is_kept_as_it_is():
    """`int` stops at 4,300 digits with a ValueError: no fault of the server, and no reason to end a conversation."""
    assert sys.get_int_max_str_digits() < 5000
    raw = f'{{"n": {"9" * 5000}}}'
    assert read(raw) == Unparsed(raw)


@pytest.mark.parametrize("raw", ["null", "[]", '["a"]', "1", '"text"', "true", "NaN", ' "x" '])
def test_json_that_is_no_object_is_refused_by_name(raw):
    with pytest.raises(FrontendError) as refused:
        read(raw)
    assert refused.value.param == PARAM


@pytest.mark.parametrize(
    "raw",
    [
        '{"a":' + "[" * 64 + "]" * 64 + "}",
        '{"a":' + "[" * 64,
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"a":' * 900 + "1" + "}" * 900,
        '{"]]]]": ' + "[" * 64,
    ],
    ids=["valid", "cut", "brackets", "objects", "near the limit", "behind a string"],
)
def test_deep_nesting_is_refused_by_name_valid_or_not(raw):
    with pytest.raises(FrontendError, match="nested deeper") as refused:
        read(raw)
    assert refused.value.param == PARAM


def test_brackets_in_strings_and_in_a_row_are_not_nesting():
    assert read('{"a": "' + "[" * 500 + '"}') == (Argument("a", "string", "[" * 500),)
    assert read('{"a": "' + "[" * 500) == Unparsed('{"a": "' + "[" * 500)
    assert read('{"a": [' + "[]," * 500 + "1]}")[0].type == "array"


@pytest.mark.parametrize(
    ("unit", "separators"),
    [("[]", 2), ("{}", 2), ("0", 1), ('"\\""', 1), ('{"":0}', 3), ("[[[[[[[]]]]]]]", 8)],
)
def test_more_separators_than_are_read_in_time_are_refused_by_name(unit, separators):
    def of(count):
        fill, rest = divmod(count - 3, separators)
        return '{"a":[' + ",".join([unit] * fill + ["1"] * rest) + "]}"

    assert read(of(SEPARATOR_LIMIT))[0].type == "array"
    for raw in (of(SEPARATOR_LIMIT + 2), of(8 * SEPARATOR_LIMIT), of(SEPARATOR_LIMIT + 2)[:-1]):
        with pytest.raises(
            FrontendError, match=r"more than 150,000 separators .* outside strings"
        ) as refused:
            read(raw)
        assert refused.value.param == PARAM


def test_separators_in_strings_are_not_counted():
    text = '[{"a\\": 1}, ":,\\\\' * (SEPARATOR_LIMIT // 3)
    assert read(json.dumps({"a": text, "b": [text]}))[0].text == text


def test_many_digits_of_long_integers_are_refused_by_name():
    def of(count):
        return '{"a": [' + ", ".join(["9" * 4_000] * count) + "]}"

    assert read(of(DIGIT_LIMIT // 4_000))[0].type == "array"
    with pytest.raises(FrontendError, match="200,000 digits of long integers") as refused:
        read(of(DIGIT_LIMIT // 4_000 + 1))
    assert refused.value.param == PARAM
    assert read('{"a": [' + "123456789012345678," * 20_000 + "1]}")[0].type == "array"


def test_the_deepest_nesting_allowed_is_written():
    raw = '{"a": ' + "[" * 63 + "]" * 63 + "}"
    assert read(raw) == (Argument("a", "array", "[" * 63 + "]" * 63),)


@pytest.mark.parametrize(
    ("raw", "read_as"),
    [
        ('{"k": "x\\ud83d"}', (Argument("k", "string", "x\ufffd"),)),
        ('{"\\ude00": ["\\ud83d", "\\ud83d\\ude00"]}', (Argument("\ufffd", "array", '["\ufffd", "😀"]'),)),
        ('{"k": "\ud83d"}', (Argument("k", "string", "\ufffd"),)),
        ('{"k": "\ude00', Unparsed('{"k": "\ufffd')),
    ],
)
def test_half_of_a_surrogate_pair_becomes_the_replacement_character(raw, read_as):
    assert read(raw) == read_as


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=6), st.booleans())
def test_any_object_is_what_python_reads_and_writes(arguments, escaped):
    raw = json.dumps(arguments, ensure_ascii=escaped)
    written = read(raw)
    assert [argument.key for argument in written] == list(arguments)
    for argument, value in zip(written, json.loads(raw).values(), strict=True):
        is_text = isinstance(value, str)
        assert argument.text == (value if is_text else json.dumps(value, ensure_ascii=False))
        assert (argument.type == "string") is is_text


@given(st.text(st.characters(exclude_categories=())) | st.text('{}[]":,\\0e-.aé\ud83d\n', max_size=40))
def test_any_string_is_arguments_or_a_refusal(raw):
    try:
        written = read(raw)
    except FrontendError as refused:
        assert refused.param == PARAM
        return
    texts = [written.text] if isinstance(written, Unparsed) else [a.key + a.text for a in written]
    for text in texts:
        text.encode()
