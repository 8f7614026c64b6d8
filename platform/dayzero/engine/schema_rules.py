"""The part of JSON Schema that the simulated engine honours: which keywords, how schemas merge, whether a value fits.

- `merged` takes `$ref` and `allOf` apart; what it cannot bring together it leaves in `allOf`, which is unsupported.
- `fits` runs no pattern and knows no format: whoever made the value saw to those.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from dayzero.frontend.kimi_k3.schemas import resolve

TYPES: Final[dict[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
"""Keywords by the type they are about."""

_OTHER_KEYWORDS: Final = frozenset({"type", "enum", "const", "anyOf", "oneOf"})
_NOTES: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "nullable",
    }
)
_LARGEST: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLEST: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_INDIRECTIONS: Final = 64
_KNOWN: Final = frozenset().union(*TYPES.values(), _OTHER_KEYWORDS, _NOTES, {"$defs", "definitions"})


def unsupported(flat: Mapping[str, Any]) -> str | None:
    """A keyword of a merged schema that is not honoured."""
    if {"enum", "const"} & set(flat) and (unread := {"pattern", "format"} & set(flat)):
        return f"{min(unread)}` beside `{'enum' if 'enum' in flat else 'const'}"
    return next((key for key in flat if not _is_known(key, flat[key])), None)


def _is_known(key: str, value: Any) -> bool:
    if key in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        return False  # of an old draft: newer ones read it as a number
    return key in _KNOWN or key.startswith(("$", "x-"))


def merged(schema: Any, root: Any, left: int = _INDIRECTIONS) -> dict[str, Any] | None:
    """Without `$ref` and `allOf`. None where nothing can fit, and for references in a circle."""
    if schema is True:
        return {}
    if not isinstance(schema, Mapping) or left < 0:
        return None
    flat: dict[str, Any] = {k: v for k, v in schema.items() if k not in ("$ref", "allOf")}
    parts = list(schema.get("allOf", ()))
    if "$ref" in schema:
        parts.append(resolve(schema["$ref"], root))
    for part in parts:
        other = merged(part, root, left - 1)
        if other is None:
            return None
        both = _both(flat, other)
        if both is None:
            return None
        flat = both
    return flat


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
    result = dict(first)
    for key, value in second.items():
        if key not in first or first[key] == value:
            result[key] = value
            continue
        combined = _combined(key, first[key], value)
        if combined is None:
            return None
        result |= combined
    return result


def _combined(key: str, one: Any, other: Any) -> dict[str, Any] | None:  # noqa: PLR0911 - a rule a keyword
    """Both values of a keyword as one. None where nothing fits both."""
    choose = max if key in _LARGEST else min if key in _SMALLEST else None
    if choose is not None:
        return {key: choose(one, other)}
    match key:
        case "type":
            kinds = _common_types(one, other)
            return {"type": kinds} if kinds else None
        case "enum":
            values = [value for value in one if value in other]
            return {"enum": values} if values else None
        case "const":
            return None
        case "required":
            return {key: [*one, *(name for name in other if name not in one)]}
        case "uniqueItems":
            return {key: bool(one or other)}
        case "properties" | "$defs" | "definitions":
            return {key: {**other, **one} | {k: {"allOf": [one[k], other[k]]} for k in one if k in other}}
        case "items" | "additionalProperties":
            return {key: {"allOf": [one, other]}}
    return {key: one} if key in _NOTES else {f"allOf.{key}": [one, other]}


def _common_types(one: Any, other: Any) -> list[str]:
    first, second = ({kind} if isinstance(kind, str) else set(kind) for kind in (one, other))
    common = first & second
    if "integer" in first | second and "number" in first | second:
        common |= {"integer"}
    return sorted(common)


def fits(value: Any, schema: Any, root: Any, left: int = _INDIRECTIONS) -> bool:
    """Patterns and formats aside."""
    flat = merged(schema, root)
    if flat is None or left < 0 or not _value_fits(value, flat):
        return False
    if "anyOf" in flat and not any(fits(value, one, root, left - 1) for one in flat["anyOf"]):
        return False
    if "oneOf" in flat and sum(fits(value, one, root, left - 1) for one in flat["oneOf"]) != 1:
        return False
    if isinstance(value, list):
        return _list_fits(value, flat, root, left)
    return not isinstance(value, Mapping) or _dict_fits(value, flat, root, left)


def _value_fits(value: Any, flat: Mapping[str, Any]) -> bool:
    """By itself: its type, whether it is one of those named, its size."""
    if "enum" in flat and not any(_same(value, one) for one in flat["enum"]):
        return False
    if "const" in flat and not _same(value, flat["const"]):
        return False
    declared = flat.get("type")
    kinds = {declared} if isinstance(declared, str) else set(declared or ())
    if kinds and not kinds & _kinds(value):
        return False
    if isinstance(value, str):
        return bool(flat.get("minLength", 0) <= len(value) <= flat.get("maxLength", math.inf))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number or _number_fits(value, flat)


def _kinds(value: Any) -> set[str]:
    """The types that a value is of, in JSON Schema's words."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == int(value) else {"number"}
    names = {str: "string", list: "array", type(None): "null"}
    return {names.get(type(value), "object")}


def _same(one: Any, other: Any) -> bool:
    """As JSON: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _number_fits(value: float, flat: Mapping[str, Any]) -> bool:
    low, high = flat.get("minimum", -math.inf), flat.get("maximum", math.inf)
    below, above = flat.get("exclusiveMinimum", -math.inf), flat.get("exclusiveMaximum", math.inf)
    # In older drafts they are booleans about `minimum` and `maximum`.
    below = (low if below else -math.inf) if isinstance(below, bool) else below
    above = (high if above else math.inf) if isinstance(above, bool) else above
    step = flat.get("multipleOf")
    return low <= value <= high and below < value < above and (not step or (value / step).is_integer())


def _list_fits(value: list[Any], flat: Mapping[str, Any], root: Any, left: int) -> bool:
    if not flat.get("minItems", 0) <= len(value) <= flat.get("maxItems", math.inf):
        return False
    if flat.get("uniqueItems") and len({repr(item) for item in value}) < len(value):
        return False
    items = flat.get("items", True)
    head = flat.get("prefixItems", items if isinstance(items, list) else [])
    rest = flat.get("additionalItems", True) if isinstance(items, list) else items
    schemas = [*head[: len(value)], *[rest] * max(0, len(value) - len(head))]
    return all(fits(item, schema, root, left - 1) for item, schema in zip(value, schemas, strict=True))


def _dict_fits(value: Mapping[str, Any], flat: Mapping[str, Any], root: Any, left: int) -> bool:
    if not flat.get("minProperties", 0) <= len(value) <= flat.get("maxProperties", math.inf):
        return False
    if any(key not in value for key in flat.get("required", ())):
        return False
    declared, others = flat.get("properties", {}), flat.get("additionalProperties", True)
    return all(fits(part, declared.get(key, others), root, left - 1) for key, part in value.items())
