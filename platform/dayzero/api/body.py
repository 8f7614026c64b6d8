"""Bytes from outside → one typed request, or a 400 that names the field.

- The happy path is one pass of msgspec: it refuses NaN, lone surrogates, invalid UTF-8, wrong types and nesting
  beyond the interpreter's recursion limit.
- Only a refused body is looked at a second time, to name the field that made it malformed, or to mend half of a
  surrogate pair where an endpoint allows it.
- An error's message never repeats a value.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dayzero.api import surrogates
from dayzero.api.errors import BodyError
from dayzero.api.json_path import spelled, walk
from dayzero.api.value_count import MAX_VALUES, too_many_values

MAX_DEPTH = 64
"""Nesting allowed inside free-form fields (JSON schemas, metadata); deeper schemas do not occur."""

MAX_EXPLAINED_BYTES = 1024 * 1024
"""A malformed body larger than this is refused without looking for its fault: that parser holds the interpreter."""

_T = TypeVar("_T")
# A value that a type of our own reads names its place within that value first.
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<inner>[^`]*)`)?(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_INVALID_VALUE = re.compile(r"^Invalid (?:enum )?value .*$", re.DOTALL)


def _nowhere(_path: str) -> bool:
    return False


def decode(body: bytes, decoder: msgspec.json.Decoder[_T], mendable: Callable[[str], bool] = _nowhere) -> _T:
    """`mendable`: at which paths half of a surrogate pair becomes U+FFFD; elsewhere it is refused. Raises BodyError."""
    if not body.strip():
        raise BodyError("The request body is empty; send a JSON object.", code="empty_body")
    if too_many_values(body):
        raise BodyError(
            f"The request body holds more than {MAX_VALUES:,} JSON values: send fewer.",
            code="too_many_values",
        )
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as e:
        raise _shape_error(str(e)) from None
    except RecursionError:
        raise BodyError("The JSON body is nested too deeply.", code="invalid_json") from None
    except msgspec.DecodeError:
        return _mended(body, decoder, mendable)


def check_depth(value: Any, param: str, limit: int = MAX_DEPTH) -> None:
    """Raises BodyError if a parsed value nests deeper than `limit`."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise BodyError(f"`{param}` is nested deeper than {limit} levels.", param=param)


def _mended(body: bytes, decoder: msgspec.json.Decoder[_T], mendable: Callable[[str], bool]) -> _T:
    """Raises BodyError."""
    try:
        value = surrogates.mended(body, mendable)
        if value is not None:
            request: _T = msgspec.convert(value, decoder.type, dec_hook=decoder.dec_hook)
            return request
    except msgspec.ValidationError as e:
        raise _shape_error(str(e)) from None
    except (msgspec.DecodeError, RecursionError):
        pass  # malformed in another way, too
    raise _malformed(body)


def _shape_error(message: str) -> BodyError:
    match = _AT.match(message)
    what, path = (match["what"], match["path"]) if match else (message, None)
    inner = match["inner"] if match else None
    if inner is not None:
        path = "$" + inner if path is None else path + inner
    param = _param(path)
    if missing := _MISSING.match(what):
        name = f"{param}.{missing['name']}" if param else missing["name"]
        return BodyError(f"Missing required field `{name}`.", param=name, code="missing_required_parameter")
    if _INVALID_VALUE.match(what):
        what = "This value is not one of those allowed"
    if param is None:
        return BodyError(f"The body is not of the expected shape: {what}.", code="invalid_type")
    return BodyError(f"Invalid `{param}`: {what}.", param=param, code="invalid_value")


def _param(path: str | None) -> str | None:
    """`$.messages[0].content` → `messages[0].content`; None for the body itself."""
    if path is None or path == "$":
        return None
    return path.removeprefix("$.").removeprefix("$")


def _malformed(body: bytes) -> BodyError:
    """Why a body is not JSON to us, with the field where Python's laxer parser can still find it."""
    if len(body) > MAX_EXPLAINED_BYTES:
        return BodyError("The body is not valid JSON.", code="invalid_json")
    try:
        value = json.loads(body)
    except UnicodeDecodeError:
        return BodyError("The body is not valid UTF-8.", code="invalid_json")
    except RecursionError:
        return BodyError("The JSON body is nested too deeply.", code="invalid_json")
    except ValueError as e:
        where = f" (line {e.lineno}, column {e.colno})" if isinstance(e, json.JSONDecodeError) else ""
        return BodyError(f"The body is not valid JSON{where}.", code="invalid_json")
    if found := _find_illegal(value):
        param, why = found
        return BodyError(f"Invalid `{param}`: {why}.", param=param, code="invalid_value")
    return BodyError("The body is not valid JSON.", code="invalid_json")


def _find_illegal(root: Any) -> tuple[str, str] | None:
    """The first number that is not finite, or string with a lone surrogate: its path and what is wrong."""
    for place, _, value in walk(root):
        if isinstance(value, str) and not _encodes(value):
            return spelled(place) or "body", "the text holds a lone UTF-16 surrogate"
        if isinstance(value, float) and not math.isfinite(value):
            return spelled(place) or "body", "NaN and Infinity are not JSON numbers"
        if isinstance(value, dict) and not all(map(_encodes, value)):
            return spelled(place) or "body", "a key holds a lone UTF-16 surrogate"
    return None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
