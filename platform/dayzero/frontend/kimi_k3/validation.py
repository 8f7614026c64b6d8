"""What a finished answer lacks of what was asked for, and no grammar made sure of: names for `degraded`.

- Pure. A call costs no more than its arguments: of a tool's lists, however long, only the beginning is looked at. No pattern of a client's is ever run.
- A schema is a client's: of any shape, and what is not understood in it allows everything.
- Only the arguments themselves are looked at, not what is inside them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dayzero.frontend.conversation import ResponseFormatKind, Tool
from dayzero.frontend.kimi_k3.grammar import parameters_of
from dayzero.frontend.kimi_k3.oddities import Oddity
from dayzero.frontend.kimi_k3.python_json import TooLargeError, load, no_constant

_MOST_REQUIRED = 1024
_MOST_TYPES = 16


@dataclass(frozen=True, slots=True)
class CallCheck:
    """A complete call as it was sent. `types`: of each argument, `json_type` of its value."""

    tool: Tool
    types: Mapping[str, str]


def check_call(call: CallCheck) -> tuple[Oddity, ...]:
    schema = parameters_of(call.tool) or {}
    properties = _mapping(schema.get("properties"))
    names = _first(schema.get("required"), _MOST_REQUIRED)
    found = {
        Oddity.ARGUMENT_MISSING: any(isinstance(name, str) and name not in call.types for name in names),
        Oddity.ARGUMENT_UNKNOWN: (
            schema.get("additionalProperties") is False
            and "patternProperties" not in schema
            and any(key not in properties for key in call.types)
        ),
        Oddity.ARGUMENT_TYPE_WRONG: any(
            not _fits(kind, _mapping(properties.get(key)).get("type")) for key, kind in call.types.items()
        ),
    }
    return tuple(oddity for oddity, is_found in found.items() if is_found)


def json_type(value: Any) -> str:
    """A parsed value's type in JSON Schema's words; `integer` for whole numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def is_json(text: str, kind: ResponseFormatKind) -> bool:
    """Whether a whole content is of the form that was asked for; its schema is not looked at.

    What takes too long to read is taken for it.
    """
    try:
        value = load(text, parse_constant=no_constant)
    except TooLargeError:
        return True
    except (ValueError, RecursionError):
        return False
    return kind is not ResponseFormatKind.JSON_OBJECT or isinstance(value, dict)


def _fits(kind: str, declared: Any) -> bool:
    allowed = [declared] if isinstance(declared, str) else [*_first(declared, _MOST_TYPES)]
    return not allowed or kind in allowed or (kind == "integer" and "number" in allowed)


def _first(values: Any, most: int) -> Iterable[Any]:
    return islice(values, most) if isinstance(values, list | tuple) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
