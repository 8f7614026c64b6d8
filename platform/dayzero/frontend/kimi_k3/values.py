"""Values of call arguments as JSON text.

- What is sent is Python's `json.dumps(value, ensure_ascii=False)`, so that an answer sent back as history is the same
  text again.
- Nothing is sent that is no JSON (NaN, infinities) or that no client could send back (more than 63 levels deep, more
  separators than `python_json` reads).
- No text holds half of a surrogate pair: a value that does is written with escapes.
"""

from json.encoder import encode_basestring
from math import isinf
from typing import Any

from dayzero.frontend.kimi_k3.python_json import DEPTH_LIMIT, deeper, load, no_constant

VALUE_LEVELS = DEPTH_LIMIT - 1
"""The arguments of a call are one level themselves."""


def string_inside(text: str) -> str:
    """The inside of a JSON string. Character by character, so parts joined are the whole."""
    return encode_basestring(text)[1:-1]


def parse(text: str) -> Any:
    """Raises ValueError for what is not sent as JSON: see the invariants, and integers beyond what Python reads."""
    try:
        value = load(text, parse_constant=no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > VALUE_LEVELS and deeper(value, VALUE_LEVELS):
        raise ValueError("nested too deeply")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        raise ValueError("no finite number")
    return value
