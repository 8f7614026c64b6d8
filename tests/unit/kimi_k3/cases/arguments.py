"""Arguments of a call."""

from tests.unit.kimi_k3.answers import EOS, SEP, C, O
from tests.unit.kimi_k3.cases.case import argument, one_call

ARGUMENTS = [
    one_call("no arguments", (), "{}"),
    one_call("no arguments but white space", (" \n ",), "{}"),
    one_call(
        "every type",
        (
            argument("s", "string", 'a "b"\n\\u00e9 \\ é \x01'),
            argument("n", "number", " 1.50 "),
            argument("b", "boolean", "true"),
            argument("z", "null", "null"),
            argument("o", "object", '{"k":{"é":"{\\"x\\": [}"}}'),
            argument("a", "array", '[1,"\\u00e9",[]]'),
        ),
        '{"s": "a \\"b\\"\\n\\\\u00e9 \\\\ é \\u0001", "n": 1.5, "b": true, "z": null, '
        '"o": {"k": {"é": "{\\"x\\": [}"}}, "a": [1, "é", []]}',
    ),
    one_call("an empty string", (argument("a", "string", ""),), '{"a": ""}'),
    one_call(
        "A5: text that spells closers",
        (argument("a", "string", "x\n</tool_call><|close|>argument<|sep|><|close|>call<|sep|>"),),
        '{"a": "x\\n</tool_call><|close|>argument<|sep|><|close|>call<|sep|>"}',
    ),
    one_call(
        "A6: a code point over tokens in a string",
        (argument("a", "string", (b"\xf0\x9f", b"\x8c\x8d!")),),
        '{"a": "\U0001f30d!"}',
    ),
    one_call("B1: half a number", (argument("a", "number", "1e"),), '{"a": "1e"}', "argument_not_json"),
    one_call(
        "B1: no object", (argument("a", "object", "not json"),), '{"a": "not json"}', "argument_not_json"
    ),
    one_call("B1: half an array", (argument("a", "array", "[1,"),), '{"a": "[1,"}', "argument_not_json"),
    one_call("B1: an empty number", (argument("a", "number", ""),), '{"a": ""}', "argument_not_json"),
    one_call("Python's words", (argument("a", "boolean", "True"),), '{"a": "True"}', "argument_not_json"),
    one_call("not a number", (argument("a", "number", "NaN"),), '{"a": "NaN"}', "argument_not_json"),
    one_call("beyond numbers", (argument("a", "number", "-1e999"),), '{"a": "-1e999"}', "argument_not_json"),
    one_call(
        "too many digits",
        (argument("a", "number", "9" * 5000),),
        '{"a": "' + "9" * 5000 + '"}',
        "argument_not_json",
    ),
    one_call(
        "as deep as a history may be",
        (argument("a", "array", "[" * 63 + "]" * 63),),
        '{"a": ' + "[" * 63 + "]" * 63 + "}",
    ),
    one_call(
        "deeper than a history may be",
        (argument("a", "array", "[" * 64 + "]" * 64),),
        '{"a": "' + "[" * 64 + "]" * 64 + '"}',
        "argument_not_json",
    ),
    one_call(
        "deeper than Python reads",
        (argument("a", "array", "[" * 20_000 + "]" * 20_000),),
        '{"a": "' + "[" * 20_000 + "]" * 20_000 + '"}',
        "argument_not_json",
    ),
    one_call(
        "half a surrogate pair stays an escape",
        (argument("a", "array", '["\\ud83c\\udf0d", "\\ud83c"]'),),
        '{"a": ["\\ud83c\\udf0d", "\\ud83c"]}',
    ),
    one_call("a value of another type", (argument("a", "number", '"x"'),), '{"a": "x"}'),
    one_call(
        "B1: no type",
        ((O('argument key="a"'), "1", C("argument")),),
        '{"a": "1"}',
        "argument_without_type",
    ),
    one_call(
        "unknown types",
        (argument("a", "integer", "1"), argument("b", "text", "so what")),
        '{"a": 1, "b": "so what"}',
        "argument_type_unknown",
        "argument_not_json",
    ),
    one_call(
        "B1: keys twice",
        (
            argument("a", "string", "1"),
            argument("a", "string", "2"),
            argument("a", "number", "3"),
            argument("b", "null", "null"),
        ),
        '{"a": "1", "b": null}',
        "argument_repeated",
    ),
    one_call(
        "no key",
        ((O('argument type="string"'), "1", C("argument")), argument("b", "null", "null")),
        '{"b": null}',
        "argument_without_key",
    ),
    one_call("an empty key", (argument("", "string", "1"),), '{"": "1"}'),
    one_call(
        "json instead of arguments",
        (O('json type="object"'), '{"b":1,"a":{"c":"é"},"b":2}', C("json")),
        '{"b": 2, "a": {"c": "é"}}',
        "arguments_as_json",
    ),
    one_call(
        "json behind arguments",
        (argument("a", "string", "1"), O("json"), '{"a": 2, "b": 3}', C("json")),
        '{"a": "1", "b": 3}',
        "argument_repeated",
        "arguments_as_json",
    ),
    one_call("empty json", (O("json"), " ", C("json")), "{}", "arguments_as_json"),
    one_call(
        "json that is none",
        (O('json type="object"'), '{"a": ', C("json")),
        '{"json": "{\\"a\\": "}',
        "json_not_object",
    ),
    one_call("json that is no object", (O("json"), "[1]", C("json")), '{"json": "[1]"}', "json_not_object"),
    one_call(
        "json without its close",
        (O("json"), '{"a": 1}'),
        '{"a": 1}',
        "argument_not_closed",
        "arguments_as_json",
    ),
    one_call("bare json", ('\n{"a": 1}\n',), '{"a": 1}', "arguments_as_json"),
    one_call("bare text", ("do it",), "{}", "text_in_call"),
    one_call(
        "an argument without its close",
        (O('argument key="a" type="string"'), "x"),
        '{"a": "x"}',
        "argument_not_closed",
    ),
    one_call(
        "closers that do not fit",
        (argument("a", "string", "x"), C("argument"), O('argument key="b" type="number"'), "1", C("json")),
        '{"a": "x", "b": 1}',
        "close_mismatched",
    ),
    one_call(
        "unknown tags within a value",
        (argument("a", "string", ("x", O("b"), "y", C("b"), SEP, EOS, "z")),),
        '{"a": "xyz"}',
        "tag_unknown",
        "sep_bare",
        "special_id",
    ),
]
