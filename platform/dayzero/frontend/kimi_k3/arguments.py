"""A call's arguments in the history: the raw string a client sent → typed values (KIMI_K3 section 3).

- Absent, empty or blank: no values. Not JSON to Python: the raw text, kept as it is. JSON but no object: refused.
- Strings are raw text; everything else is JSON with Python's default separators.
- Half of a surrogate pair, which an escape can hide, becomes U+FFFD: a history that once was accepted is not refused later.
"""

from dataclasses import dataclass
from typing import Any

from dayzero.frontend.errors import FrontendError
from dayzero.frontend.kimi_k3 import python_json


@dataclass(frozen=True, slots=True)
class Argument:
    """`type`: as the format names it. `text`: as it stands between the tags."""

    key: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Arguments that are no JSON."""

    text: str


def arguments_of(raw: str, param: str) -> tuple[Argument, ...] | Unparsed:
    """Raises FrontendError naming `param`: nested too deeply, too much to read, or valid JSON that is not an object."""
    if not raw or raw.isspace():
        return ()
    try:
        parsed = python_json.parse(raw, param)
    except ValueError:
        return Unparsed(python_json.whole(raw))
    if not isinstance(parsed, dict):
        raise FrontendError(
            f"`{param}` is JSON but not an object; send an object or leave it out", param=param
        )
    return tuple(_argument(key, value) for key, value in parsed.items())


def _argument(key: str, value: Any) -> Argument:
    text = value if isinstance(value, str) else python_json.write(value)
    return Argument(python_json.whole(key), _type_of(value), python_json.whole(text))


def _type_of(value: Any) -> str:
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case None:
            return "null"
        case dict():
            return "object"
        case _:
            return "array"
