"""Random values that a schema allows, judged by the `jsonschema` library."""

import json
import random
import re

import pytest

from dayzero.engine.errors import UnsupportedFeatureError
from dayzero.engine.random_json import random_json
from dayzero.engine.random_text import text_of_pattern

jsonschema = pytest.importorskip("jsonschema")

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value", "children"],
        }
    },
    "$ref": "#/$defs/node",
}  # fmt: skip

SCHEMAS = {
    "anything": True,
    "empty": {},
    "string": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": r"^[A-Z]{2,4}-\d+(\.x|\.y)?$"},
    "loose pattern": {"type": "string", "pattern": "a+[^b]"},
    "format": {"type": "string", "format": "date-time"},
    "integer": {"type": "integer", "minimum": 10, "exclusiveMaximum": 12},
    "far integer": {"type": "integer", "minimum": 10**12},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 1},
    "number": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    "tenths": {"type": "number", "multipleOf": 0.1},
    "types": {"type": ["null", "boolean", "array"]},
    "enum": {"enum": [1, "a", None, {"b": [2]}]},
    "enum narrowed": {"type": "string", "enum": [1, "ab", "c"], "minLength": 2},
    "const": {"const": {"deep": [True]}},
    "object": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "number"}, "c": False},
        "required": ["a", "z"],
        "additionalProperties": {"type": "boolean"},
        "minProperties": 4,
    },
    "closed": {"type": "object", "properties": {"a": {}}, "additionalProperties": False, "maxProperties": 1},
    "implied object": {"properties": {"a": {"type": "null"}}, "required": ["a"]},
    "array": {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 3},
    "tuple": {"prefixItems": [{"type": "string"}, {"type": "null"}], "items": False, "minItems": 2},
    "any of": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 5}]},
    "one of": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 50}]},
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"type": "number", "maximum": 4}]},
    "all of objects": {
        "allOf": [
            {"properties": {"a": {"type": "number"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 8}, "b": {"const": 1}}, "required": ["b"]},
        ],
        "type": "object",
    },
    "any of with siblings": {
        "type": "object",
        "properties": {"kind": {"type": "string"}, "x": {"type": "integer"}},
        "required": ["kind"],
        "anyOf": [{"properties": {"kind": {"const": "p"}}}, {"required": ["x"]}],
    },
    "tree": TREE,
    "recursive choice": {"$defs": {"v": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/v"}, "minItems": 2},
                                                   {"type": "null"}]}}, "$ref": "#/$defs/v"},
    "root reference": {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}},
                       "required": ["n"]},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_value_is_valid(name):
    schema = SCHEMAS[name]
    judge = jsonschema.Draft202012Validator(schema)
    for seed in range(40):
        value = random_json(schema, random.Random(seed))
        judge.validate(json.loads(json.dumps(value)))


def test_the_same_dice_give_the_same_value():
    assert random_json(TREE, random.Random(3)) == random_json(TREE, random.Random(3))


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"not": {"type": "string"}}, "`not`"),
        ({"type": "object", "properties": {"a": {"if": {}, "then": {}}}, "required": ["a"]}, "`if`"),
        ({"type": "object", "patternProperties": {"a": {}}}, "`patternProperties`"),
        ({"type": "string", "format": "colour"}, "`format`"),
        ({"type": "string", "pattern": "(?=a)b"}, "`pattern`"),
        ({"type": "string", "pattern": r"(a)\1"}, "`pattern`"),
        ({"type": "string", "pattern": "(unclosed"}, "`pattern`"),
        ({"type": "string", "pattern": "^aaaa$", "maxLength": 2}, "no value"),
        (False, "no value"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no value"),
        ({"type": "array", "items": {"const": 1}, "uniqueItems": True, "minItems": 2}, "no value"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "no value"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no value"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no value"),
        ({"type": "string", "pattern": "^$", "enum": ["ab"]}, "`pattern` beside `enum`"),
        ({"format": "date", "const": "ab"}, "`format` beside `const`"),
        ({"anyOf": [{"pattern": "^$"}], "enum": ["ab"]}, "`pattern` beside `enum`"),
        ({"type": "number", "exclusiveMinimum": True, "minimum": 1}, "`exclusiveMinimum`"),
        ({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, "multipleOf"),
    ],
)
def test_what_it_cannot_make_is_refused_by_name(schema, what):
    with pytest.raises(UnsupportedFeatureError) as caught:
        random_json(schema, random.Random(0), field="tools")
    assert what in caught.value.message
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "pattern",
    ["", "abc", "^a?b*c+$", "[^a-z]{3}", r"\w+@\w+\.(com|org)", r"(\d{3}-){2}x", "ä[öü]", r"\S\s\D\W"],
)
def test_a_text_matches_its_pattern(pattern):
    for seed in range(40):
        assert re.search(pattern, text_of_pattern(pattern, random.Random(seed), "tools"))
