"""JSON schemas as nodes of a structural tag: as xgrammar reads them rightly, and bounded where that is asked for."""

from collections.abc import Callable, Mapping
from typing import Any

from dayzero.frontend.kimi_k3.pattern_cost import pattern_cost
from dayzero.serving.engines.vllm_kimi_k3_formats import Exact, Format

_SPACES = 128
"""Of white space in a row: enough for any indentation, and an end to a model that goes on with it for ever."""
_MOST_COUNTED = 256
"""Characters of a string inside JSON."""
_ITEMS = 3
_NUMBER = 999_999
_NAME = "^[a-z]{1,8}$"
_CHILDREN = ("items", "additionalProperties", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_VALUED = ("enum", "const", "$ref", "anyOf", "oneOf", "allOf")


def json_format(schema: Any, exact: Exact) -> Format:
    text_characters = exact.text_characters
    prepared = schema if text_characters is None else bounded(schema, text_characters)
    return {
        "type": "json_schema",
        "json_schema": readable(prepared, exact),
        "max_whitespace_cnt": _SPACES if text_characters is None else 1,
    }


def bounded(schema: Any, text_characters: int) -> Any:
    """The schema with a bound wherever it has none. Whatever it allows, the schema allows."""
    if not isinstance(schema, Mapping):
        return _anything(text_characters) if schema is True else schema
    if not set(schema) & {"type", "properties", "items", *_VALUED}:
        return dict(schema) | _anything(text_characters)
    result = _with_parts(schema, lambda part: bounded(part, text_characters))
    return result if set(schema) & set(_VALUED) else result | _bounds(result, text_characters)


def readable(schema: Any, exact: Exact) -> Any:
    """The schema as xgrammar reads it rightly.

      - Of a string with a length it lets control characters through, which are no JSON; a pattern of that length does not.
        Neither allows escapes, and each takes it long, so a long one, and what is past `MAX_STATES`, is left to the model.
    So are patterns past it, and `minProperties` past `MAX_SKIPS`.
      - An array that must have items, of no type, it refuses.
    """
    if not isinstance(schema, Mapping):
        return schema
    result = _with_parts(schema, lambda part: readable(part, exact))
    if "pattern" in schema and not exact.may_take(pattern_cost(schema["pattern"])):
        del result["pattern"]
    least, declared = int(schema.get("minProperties", 0)), len(schema.get("properties", {}))
    if least and not exact.may_skip(least, declared):
        del result["minProperties"]
    if set(schema) & set(_VALUED):
        return result
    kinds = _kinds(schema)
    if "string" in kinds and not set(schema) & {"pattern", "format"}:
        least, most = int(result.pop("minLength", 0)), result.pop("maxLength", None)
        most = int(most) if most is not None and most <= _MOST_COUNTED else None
        if (least or most is not None) and exact.may_spell(least, most):
            result["pattern"] = f"^.{{{least},{'' if most is None else most}}}$"
    if "array" in kinds and "prefixItems" not in schema:
        result.setdefault("items", True)
    return result


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    declared = schema.get("type", "object" if "properties" in schema else "array")
    return {declared} if isinstance(declared, str) else set(declared)


def _with_parts(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """With each schema within it changed."""
    return {key: _changed(key, part, change) for key, part in schema.items()}


def _changed(keyword: str, part: Any, change: Callable[[Any], Any]) -> Any:
    if keyword in _CHILDREN and isinstance(part, Mapping):
        return change(part)
    if keyword in _LISTS:
        return [change(child) for child in part]
    if keyword in _NAMED:
        return {name: change(child) for name, child in part.items()}
    return part


def _bounds(schema: Mapping[str, Any], text_characters: int) -> dict[str, Any]:
    kinds = _kinds(schema)
    bounds: dict[str, Any] = {}
    if "string" in kinds and not set(schema) & {"maxLength", "pattern", "format"}:
        bounds["maxLength"] = max(text_characters, int(schema.get("minLength", 0)))
    if kinds & {"integer", "number"}:
        bounds |= _range(schema)
    if "array" in kinds:
        if "maxItems" not in schema:
            bounds["maxItems"] = max(
                _ITEMS, int(schema.get("minItems", 0)), len(schema.get("prefixItems", ()))
            )
        if "items" not in schema and "prefixItems" not in schema:
            bounds["items"] = _scalar(text_characters)
    if "object" in kinds and not schema.get("properties") and "patternProperties" not in schema:
        bounds |= _members(schema, text_characters)
    return bounds


def _range(schema: Mapping[str, Any]) -> dict[str, Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    bounds: dict[str, Any] = {}
    if low is None:
        bounds["minimum"] = -_NUMBER if high is None else min(-_NUMBER, high - _NUMBER)
    if high is None:
        bounds["maximum"] = _NUMBER if low is None else max(_NUMBER, low + _NUMBER)
    return bounds


def _members(schema: Mapping[str, Any], text_characters: int) -> dict[str, Any]:
    """Of an object that may have any: a few, with short names."""
    others = schema.get("additionalProperties", True)
    if others is False or schema.get("required"):
        return {}
    value = _scalar(text_characters) if others is True else others
    return {
        "patternProperties": {_NAME: value},
        "additionalProperties": False,
        "maxProperties": max(_ITEMS, int(schema.get("minProperties", 0))),
    }


def _scalar(text_characters: int) -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "string", "maxLength": text_characters},
            {"type": "integer", "minimum": -_NUMBER, "maximum": _NUMBER},
            {"type": "boolean"},
            {"type": "null"},
        ]
    }


def _anything(text_characters: int) -> dict[str, Any]:
    scalar = _scalar(text_characters)["anyOf"]
    return {"anyOf": [*scalar, {"type": "array", "maxItems": _ITEMS, "items": _scalar(text_characters)}]}
