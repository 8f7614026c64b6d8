"""Schemas are a client's: whatever they are, checking a call never raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.conversation import ResponseFormatKind, Tool
from dayzero.frontend.kimi_k3.oddities import Oddity
from dayzero.frontend.kimi_k3.validation import CallCheck, check_call, is_json, json_type

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["function", "parameters", "properties", "required", "type", "a", "additionalProperties"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["function", "parameters", "a"]), anything, max_size=3))
def test_any_schema_is_borne(spec):
    assert set(check_call(CallCheck(Tool("f", spec), {"a": "string"}))) <= set(Oddity)


def checked(schema, **types):
    return check_call(CallCheck(Tool("f", {"function": {"parameters": schema}}), types))


def test_what_is_not_understood_allows_everything():
    assert checked({"properties": {"a": {"anyOf": [{"type": "null"}]}}}, a="string") == ()
    assert checked({"properties": {"a": True}, "additionalProperties": {}}, a="string", b="null") == ()
    assert checked({"additionalProperties": False, "patternProperties": {".": {}}}, a="null") == ()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "integer"),
        (1.0, "integer"),
        (1e300, "integer"),
        (1.5, "number"),
        ("", "string"),
        ([], "array"),
        ({}, "object"),
    ],
)
def test_a_value_has_the_type_that_a_schema_would_say(value, name):
    assert json_type(value) == name


def test_json_is_what_every_client_reads():
    assert is_json(' {"a": 1}\n', ResponseFormatKind.JSON_OBJECT)
    assert not is_json("[1]", ResponseFormatKind.JSON_OBJECT)
    assert is_json("[1]", ResponseFormatKind.JSON_SCHEMA)
    for text in ("", "{}x", "NaN", "[" * 100_000, "1" + "0" * 5_000):
        assert not is_json(text, ResponseFormatKind.JSON_SCHEMA)


def test_what_takes_too_long_to_read_is_not_checked():
    assert not is_json("[" + "0," * 100_000, ResponseFormatKind.JSON_OBJECT)
    assert is_json("[" + "0," * 200_000, ResponseFormatKind.JSON_OBJECT)


class Looked(list):
    """A list that counts how many of its entries were looked at."""

    looked = 0

    def __iter__(self):
        for entry in super().__iter__():
            self.looked += 1
            yield entry


def test_a_call_looks_at_the_beginning_only_of_the_lists_that_its_tool_has():
    required, types = Looked([0] * 400_000), Looked([0] * 400_000)
    schema = {"required": required, "properties": {"a": {"type": types}}}
    check_call(CallCheck(Tool("f", {"function": {"parameters": schema}}), {"a": "string"}))
    assert 0 < required.looked <= 2_000
    assert 0 < types.looked <= 100
