"""When a conversation asks for a grammar, and which schemas one may hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.conversation import (
    Conversation,
    Message,
    ResponseFormat,
    ResponseFormatKind,
    Role,
    Text,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)
from dayzero.frontend.errors import FrontendError
from dayzero.frontend.kimi_k3 import schemas
from dayzero.frontend.kimi_k3.grammar import KIND, GrammarTool, TurnGrammar, turn_grammar
from dayzero.frontend.kimi_k3.pattern_cost import pattern_cost
from dayzero.frontend.kimi_k3.schemas import schema_fault
from dayzero.frontend.protocol import Channel

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GO = Message(Role.USER, (Text("go"),))
JSON = ResponseFormat(ResponseFormatKind.JSON_OBJECT)


def tool(name="weather", parameters=CITY, *, strict=False):
    return Tool(name, {"type": "function", "function": {"name": name, "parameters": parameters}}, strict)


def asked(*tools, messages=(GO,), start=Channel.THINK, text_characters=None, **more):
    conversation = Conversation(messages, tools, **more)
    carried = tuple(tool for message in messages for tool in message.tools)
    request = turn_grammar(conversation, (*tools, *carried), start, text_characters=text_characters)
    if request is None:
        return None
    assert request.kind == KIND
    return TurnGrammar.decode(request.spec)


def choice(mode, name=None, *, parallel=True):
    return {"tool_choice": ToolChoice(ToolChoiceMode(mode), name, parallel)}


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_free_answers_need_no_grammar(mode):
    assert asked(tool(), **choice(mode)) is None
    assert asked() is None


@pytest.mark.parametrize(
    ("mode", "parallel", "strict", "calls"),
    [
        ("required", True, False, "required"),
        ("required", False, False, "one"),
        ("auto", True, True, "optional"),
        ("auto", False, True, "at_most_one"),
        ("auto", False, False, "at_most_one"),
    ],
)
def test_the_number_of_calls_follows_choice_and_parallel(mode, parallel, strict, calls):
    grammar = asked(tool(strict=strict), **choice(mode, parallel=parallel))
    assert grammar.calls == calls
    assert grammar.start is Channel.THINK


def test_a_named_choice_allows_that_tool_alone_and_once():
    grammar = asked(tool("a"), tool("b"), **choice("named", "b"))
    assert (grammar.calls, grammar.tools) == ("one", (GrammarTool("b", CITY),))


def test_a_choice_that_nothing_fits_names_the_field():
    with pytest.raises(FrontendError) as unknown:
        asked(tool("a"), **choice("named", "z"))
    with pytest.raises(FrontendError) as none:
        asked(**choice("required"))
    assert (unknown.value.param, none.value.param) == ("tool_choice.function.name", "tool_choice")


def test_in_a_free_choice_only_strict_tools_are_bounded_by_their_schema():
    grammar = asked(tool("a", strict=True), tool("b"))
    assert grammar.tools == (GrammarTool("a", CITY), GrammarTool("b"))


def test_a_forced_call_is_bounded_by_the_schema_of_any_tool():
    assert asked(tool("a"), **choice("required")).tools == (GrammarTool("a", CITY),)


def test_a_schema_that_nobody_relies_on_may_be_odd_and_a_strict_one_may_not():
    odd = {"type": "object", "properties": 7}
    assert asked(tool("a", odd), **choice("required")).tools == (GrammarTool("a"),)
    with pytest.raises(FrontendError) as caught:
        asked(tool("a"), tool("b", odd, strict=True))
    assert caught.value.param == "tools[1].function.parameters"
    assert "$.properties" in caught.value.message


def test_tools_of_messages_are_in_the_table_and_named_by_their_place():
    carrier = Message(Role.SYSTEM, tools=(tool("late", strict=True),))
    assert [one.name for one in asked(tool("a"), messages=(carrier, GO)).tools] == ["a", "late"]
    bad = Message(Role.SYSTEM, tools=(tool("late", {"type": "text"}, strict=True),))
    with pytest.raises(FrontendError) as caught:
        asked(messages=(GO, bad, GO))
    assert caught.value.param == "messages[1].tools[0].function.parameters"


def test_response_formats_bound_the_response_with_or_without_calls():
    assert asked(response_format=JSON).response == "json_object"
    wanted = ResponseFormat(ResponseFormatKind.JSON_SCHEMA, "s", CITY)
    grammar = asked(tool(), response_format=wanted, **choice("required"))
    assert (grammar.response, grammar.schema, grammar.calls) == ("json_schema", CITY, "required")
    assert asked(tool(), response_format=JSON, **choice("none")).calls == "none"


def test_a_bad_response_schema_names_its_field():
    wanted = ResponseFormat(ResponseFormatKind.JSON_SCHEMA, "s", {"$ref": "#/$defs/none"})
    with pytest.raises(FrontendError) as caught:
        asked(response_format=wanted)
    assert caught.value.param == "response_format.json_schema.schema"


def test_a_response_that_the_request_began_is_not_bounded_by_a_format():
    begun = Message(Role.ASSISTANT, (Text('{"a":'),), partial=True)
    assert asked(messages=(GO, begun), response_format=JSON) is None


def test_too_much_schema_together_is_refused():
    wide = {"type": "object", "properties": {f"p{i}": {"description": "x" * 1000} for i in range(30)}}
    with pytest.raises(FrontendError, match="fewer tools"):
        asked(*(tool(f"t{i}", wide, strict=True) for i in range(10)))


def test_the_bound_on_free_text_is_the_frontends():
    assert asked(response_format=JSON, text_characters=40).text_characters == 40


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        CITY,
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": ["string", "null"], "enum": ["a", None]},
        {"$defs": {"a/b": {"items": {"$ref": "#/$defs/a~1b"}}}, "$ref": "#/$defs/a~1b"},
        {"$ref": "#"},
        {"items": [{"type": "string"}], "prefixItems": [{}]},
        {"minimum": 0.5, "exclusiveMaximum": True, "minLength": 2.0},
    ],
)
def test_well_formed_schemas_may_become_grammars(schema):
    assert schema_fault(schema) is None


@pytest.mark.parametrize(
    ("pattern", "cost"),
    [
        ("", 0),
        ("^abc$", 3),
        (r"^[0-9]{4}-\d{2}-[0-9]{2}$", 10),
        ("(ab){3}", 6),
        ("((a{2}b){3}c){4}", 40),
        ("[(){}]{2}", 2),
        ("[]a]{3}", 5),  # as ECMAScript reads it, where `[]` is a class
        (r"[\]a]{3}", 3),
        ("[a{3}", 4),
        ("a{2,}", 2),
        ("a{,50}", 50),
        ("a{}", 1),
        ("a|b+", 2),
        ("a{0}", 1),
        ("a{" + "9" * 5000 + "}", 10_000),
        (")(", 0),
    ],
)
def test_a_patterns_cost_is_its_length_with_repeats_written_out(pattern, cost):
    assert pattern_cost(pattern) == cost


def deep(levels):
    schema = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def nested_lists(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (7, "$ must be"),
        ({"type": "text"}, "$.type"),
        ({"type": []}, "$.type"),
        ({"properties": []}, "$.properties"),
        ({"properties": {"a": 1}}, "$.properties.a must be"),
        ({"anyOf": []}, "$.anyOf"),
        ({"allOf": {}}, "$.allOf"),
        ({"enum": "a"}, "$.enum"),
        ({"required": "a"}, "$.required"),
        ({"required": [1]}, "$.required"),
        ({"required": [str(i) for i in range(257)]}, "$.required has more"),
        ({"properties": {str(i): {} for i in range(250)}, "minProperties": 200}, "$.minProperties"),
        ({"properties": {"k" * 200 + str(i): {} for i in range(200)}}, "$.properties and"),
        ({"properties": {i: {"patternProperties": {i * 40: {}}} for i in "ab"}}, "one too many"),
        ({"pattern": 1}, "$.pattern"),
        ({"pattern": "a" * 300}, "$.pattern"),
        ({"patternProperties": {"a" * 300: {}}}, "$.pattern"),
        ({"minLength": -1}, "$.minLength"),
        ({"minItems": 1.5}, "$.minItems"),
        ({"maxLength": "1"}, "$.maxLength"),
        ({"minItems": 100_000}, "$.minItems"),
        ({"minimum": "1"}, "$.minimum"),
        ({"$ref": "http://example.com/x"}, "$.$ref"),
        ({"$ref": "#/nowhere"}, "$.$ref"),
        ({"$ref": 1}, "$.$ref"),
        ({"pattern": "(.{1,20}){1,20}"}, "$.pattern"),
        ({"minItems": schemas.MAX_LEAST + 1}, "$.minItems"),
        ({"enum": list(range(schemas.MAX_VALUES + 1))}, "$.enum"),
        ({"anyOf": [{}] * (schemas.MAX_BRANCHES + 1)}, "$.anyOf"),
        ({"properties": {str(i): {} for i in range(schemas.MAX_PROPERTIES + 1)}}, "$.properties"),
        ({"anyOf": [{"anyOf": [{}] * schemas.MAX_BRANCHES}] * schemas.MAX_BRANCHES}, "parts"),
        (deep(schemas.MAX_LEVELS), "deeper"),
        (deep(100_000), "deeper"),
        ({"pattern": "(" * 50_000 + ")" * 50_000}, "$.pattern"),
        ({"pattern": "(" * 33 + ")" * 33}, "$.pattern has groups"),
        ({"patternProperties": {"(" * 33 + ")" * 33: {}}}, "$.pattern has groups"),
        ({"$ref": "#/enum/" + "9" * 5000, "enum": [1]}, "$.$ref"),
        ({"$ref": "#/enum/" + "9" * 900, "enum": [1]}, "$.$ref"),
        ({"$ref": "#/default", "default": {"pattern": "a" * 300}}, "$.$ref.pattern"),
        ({"const": nested_lists(5000)}, "deeper"),
        ({"enum": [nested_lists(100)]}, "deeper"),
        ({"x-note": nested_lists(100)}, "deeper"),
        ({"default": [0] * 40_000}, "values"),
    ],
)
def test_other_schemas_are_refused_with_the_place(schema, place):
    assert place in schema_fault(schema)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "$ref",
                    "enum",
                    "required",
                    "pattern",
                    "minLength",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_no_json_value_makes_the_check_fail(schema):
    fault = schema_fault(schema)
    assert fault is None or json.dumps(fault)


def test_a_fault_under_a_long_key_is_named_in_a_few_words():
    key = "k" * 30_000
    schema = {"properties": {key: {"anyOf": [{"properties": {"b": {"type": "what"}}}] * 32}}}
    fault = schema_fault(schema)
    assert fault.startswith("$.properties.kkk")
    assert len(fault) < 300


def realistic():
    word = [f"word_{i}" for i in range(200)]
    kinds = (
        {"type": "string", "minLength": 1, "maxLength": 4096},
        {"type": "integer", "minimum": 0, "maximum": 100},
        {"type": "string", "enum": word},
        {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        {
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        },
    )
    nested = {"type": "string"}
    for level in range(5):
        nested = {"type": "object", "properties": {f"level_{level}": nested, "note": {"type": "string"}}}
    properties = {f"property_{i}": kinds[i % len(kinds)] for i in range(30)} | {"nested": nested}
    return {"type": "object", "properties": properties, "required": [f"property_{i}" for i in range(15)]}


def test_realistic_schemas_are_within_the_bounds():
    assert schema_fault(realistic()) is None
    small = {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": [f"word_{i}" for i in range(200)]},
            "text": {"type": "string", "maxLength": 4096},
        },
    }
    many = tuple(tool(f"tool_{i}", small, strict=True) for i in range(25))
    assert asked(*many) is not None


@pytest.mark.parametrize("piece", ["[", "(", "{", "[]", "[^", "\\", "{1", "[("])
def test_a_pattern_of_megabytes_is_read_in_one_pass(piece):
    """Anything that looked back over it would still be running when the test's time is up."""
    assert pattern_cost(piece * 1_000_000) >= 0
    assert schema_fault({"pattern": piece * 1_000_000}) is not None
