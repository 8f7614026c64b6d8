"""Which JSON schemas may become a grammar: well-formed ones, within bounds that any engine compiles in a moment.

- Iterative and linear in the schema: it is a client's, and may be hostile.
- No regular expression is run; whether a pattern compiles is for the engine to say.
- Keywords that no grammar enforces are allowed: they stay the model's business.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from dayzero.frontend.kimi_k3.pattern_cost import pattern_cost, pattern_fault

MAX_BYTES = 128 * 1024
"""Of all schemas of a request, as JSON."""
MAX_NODES = 1024
_SHOWN = 64
"""Characters of a key in a fault's path: a key may have megabytes, and each part below it repeats them."""
MAX_LEVELS = 24
MAX_JSON_LEVELS = 3 * MAX_LEVELS
"""Of everything in it: a schema within a schema is two or three levels of JSON."""
MAX_JSON_VALUES = 32 * 1024
MAX_REFERENCE = 1024
"""Characters of a `$ref`."""
_FEW_DIGITS = 6
MAX_VALUES = 1024
"""Of an `enum`."""
MAX_BRANCHES = 32
"""Of an `anyOf` and its like: a grammar must hold all of them open at once."""
MAX_PROPERTIES = 256
"""Of one object: a grammar's size grows with the square of the optional ones."""
MAX_NAMES = 32 * 1024
"""Characters of one object's names."""
MAX_SKIPPED = 2048
"""`minProperties` times how many of an object's properties may be left out: a grammar has a state for each pair."""
MAX_KEY_PATTERNS = 64
"""Of all `patternProperties` together, as `pattern_cost` counts."""
MAX_COUNT = 10_000_000
"""Of `maxLength` and its like."""
MAX_LEAST = 256
"""Of `minLength` and its like: a grammar spells out what must be there, where what may be is a counter."""

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_SCHEMA = ("items", "additionalProperties", "additionalItems", "contains", "not", "propertyNames", "if", "then", "else",
           "unevaluatedProperties", "unevaluatedItems")  # fmt: skip
_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LEAST = ("minLength", "minItems", "minProperties", "minContains")
_MOST = ("maxLength", "maxItems", "maxProperties", "maxContains")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def schema_fault(schema: Any) -> str | None:  # noqa: PLR0911 - a bound each
    """What is wrong with a schema, in words that name the place; None for one that may become a grammar."""
    fault = _json_fault(schema)
    if fault is not None:
        return fault
    nodes = key_characters = 0
    for node, path, level in _nodes(schema):
        nodes += 1
        if nodes > MAX_NODES:
            return f"it has more than {MAX_NODES:,} parts"
        if level > MAX_LEVELS:
            return f"it is nested deeper than {MAX_LEVELS} levels"
        if isinstance(node, bool):
            continue
        if not isinstance(node, Mapping):
            return f"{path} must be an object or a boolean"
        fault = _fault_of(node, schema)
        if fault is not None:
            return f"{path}{fault}"
        key_characters += sum(pattern_cost(key) for key in node.get("patternProperties", ()))
        if key_characters > MAX_KEY_PATTERNS:
            return f"{path}.patternProperties has one too many: repeats written out, a grammar holds at most {MAX_KEY_PATTERNS} characters of all"
    return None


def _nodes(schema: Any) -> Iterator[tuple[Any, str, int]]:
    """Each schema in it, its path, and its level; one is looked into when whoever asked has found no fault with it.

    What only a reference makes a schema comes last, each once.
    """
    walked: set[int] = set()
    referred: list[tuple[Any, str]] = []
    waiting: list[tuple[Any, str, int]] = [(schema, "$", 1)]
    while waiting:
        node, path, level = waiting.pop()
        yield node, path, level
        walked.add(id(node))
        if isinstance(node, Mapping):
            waiting += ((child, f"{path}.{name}", level + 1) for name, child in _children(node))
            if isinstance(node.get("$ref"), str):
                referred.append((resolve(node["$ref"], schema), f"{path}.$ref"))
        while referred and not waiting:
            node, path = referred.pop()
            if id(node) not in walked:
                waiting.append((node, path, 1))


def _json_fault(schema: Any) -> str | None:
    """Of all that is in it, keywords that say nothing included: engines parse it by recursion."""
    values = 0
    waiting = [(schema, 1)]
    while waiting:
        value, level = waiting.pop()
        values += 1
        if values > MAX_JSON_VALUES:
            return f"it has more than {MAX_JSON_VALUES:,} values"
        if level > MAX_JSON_LEVELS:
            return f"it is nested deeper than {MAX_JSON_LEVELS} levels"
        if isinstance(value, Mapping):
            waiting += ((inner, level + 1) for inner in value.values())
        elif isinstance(value, list):
            waiting += ((inner, level + 1) for inner in value)
    return None


def _children(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _SCHEMA:
        if key == "items" and isinstance(node.get(key), list):
            yield from ((f"items[{i}]", child) for i, child in enumerate(node[key]))
        elif key in node:
            yield key, node[key]
    for key in _SCHEMAS:
        yield from ((f"{key}[{i}]", child) for i, child in enumerate(node.get(key, ())))
    for key in _NAMED_SCHEMAS:
        yield from ((f"{key}.{name[:_SHOWN]}", child) for name, child in node.get(key, {}).items())


def _fault_of(node: Mapping[str, Any], root: Any) -> str | None:
    """Of one node by itself: how its path goes on, and what is wrong there."""
    for check in (_types, _shapes, _strings, _counts, _references):
        if (fault := check(node, root)) is not None:
            return fault
    return None


def _types(node: Mapping[str, Any], _root: Any) -> str | None:
    if "type" not in node:
        return None
    kind = node["type"]
    kinds = kind if isinstance(kind, list) else [kind]
    if not kinds or not all(isinstance(one, str) and one in _TYPES for one in kinds):
        return f".type must be one or more of {', '.join(sorted(_TYPES))}"
    return None


def _shapes(node: Mapping[str, Any], _root: Any) -> str | None:
    for key in _NAMED_SCHEMAS:
        if not isinstance(node.get(key, {}), Mapping):
            return f".{key} must be an object"
        if len(node.get(key, {})) > MAX_PROPERTIES:
            return f".{key} has more than {MAX_PROPERTIES} entries"
    for key in (*_SCHEMAS, "enum"):
        if key not in node:
            continue
        if not isinstance(node[key], list) or not node[key]:
            return f".{key} must be a list that is not empty"
        most = MAX_VALUES if key == "enum" else MAX_BRANCHES
        if len(node[key]) > most:
            return f".{key} has more than {most:,} entries"
    return None


def _strings(node: Mapping[str, Any], _root: Any) -> str | None:
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        return ".required must be a list of strings"
    if len(required) > MAX_PROPERTIES:
        return f".required has more than {MAX_PROPERTIES} entries"
    named = (*required, *node.get("properties", {}))
    if sum(map(len, named)) > MAX_NAMES:
        return f".properties and its .required have names of more than {MAX_NAMES:,} characters together"
    pattern = node.get("pattern", "")
    if not isinstance(pattern, str):
        return ".pattern must be a string"
    fault = next((fault for one in _patterns(node) if (fault := pattern_fault(one))), None)
    return None if fault is None else f".pattern {fault}"


def _patterns(node: Mapping[str, Any]) -> tuple[str, ...]:
    return (node.get("pattern", ""), *node.get("patternProperties", {}))


def _counts(node: Mapping[str, Any], _root: Any) -> str | None:
    for keys, most in ((_LEAST, MAX_LEAST), (_MOST, MAX_COUNT)):
        for key in keys:
            count = node.get(key, 0)
            if isinstance(count, bool) or not isinstance(count, int | float) or count % 1:
                return f".{key} must be an integer"
            if not 0 <= count <= most:
                return f".{key} must be 0 to {most:,}"
    least, declared = int(node.get("minProperties", 0)), len(node.get("properties", {}))
    if least * (declared - least) > MAX_SKIPPED:
        return f".minProperties of {least} among {declared} properties makes too large a grammar"
    for key in _NUMBERS:
        number = node.get(key, 0)
        if not isinstance(number, int | float) or (
            isinstance(number, bool) and not key.startswith("exclusive")
        ):
            return f".{key} must be a number"
    return None


def _references(node: Mapping[str, Any], root: Any) -> str | None:
    reference = node.get("$ref")
    if reference is None:
        return None
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return ".$ref must point into the schema itself, as in #/$defs/name"
    if resolve(reference, root) is None:
        return ".$ref points to nothing"
    return None


def resolve(reference: str, root: Any) -> Any:
    """What a local reference (`#/$defs/name`) points to; None for nothing, and for a reference of too many characters."""
    if len(reference) > MAX_REFERENCE:
        return None
    place = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and key in place:
            place = place[key]
        elif isinstance(place, list) and _is_index(key) and int(key) < len(place):
            place = place[int(key)]
        else:
            return None
    return place


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) <= _FEW_DIGITS
