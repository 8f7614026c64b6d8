"""JSON as Python's `json` reads and writes it: other libraries print numbers otherwise, and that changes ids.

- What is nested more than `DEPTH_LIMIT` levels deep is refused, valid or not, so that no answer depends on how deep the
  interpreter's own stack was.
- Reading and writing hold the interpreter lock, so what takes long is told beforehand and not read: `load`.
- Half of a surrogate pair cannot be encoded: `whole` puts U+FFFD in its place, `check_text` refuses it.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from dayzero.frontend.errors import FrontendError

VALUE_TYPES = ("string", "number", "boolean", "null", "object", "array")
"""Of an argument, as the format names them."""
DEPTH_LIMIT = 64
SEPARATOR_LIMIT = 150_000
"""Of `,` `:` `[` `{` outside strings. So many take up to 50 ms to read, and as long to write."""
DIGIT_LIMIT = 200_000
"""Of all integers that are longer than a machine's. Reading and writing one is quadratic in its digits."""

_Reader = Callable[[str], Any]
_MACHINE_DIGITS = 18
_SEPARATORS = ",:[{"
# A string, its two quotes counted, stands beside one of its own at least.
_QUOTES_A_SEPARATOR = 4
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


class TooLargeError(ValueError):
    """JSON, valid or not, that takes too long to read."""


def sorted_block(value: Any, param: str) -> str:
    """A fenced block of compact JSON, keys sorted at every level. Raises FrontendError naming `param`."""
    if deeper(value, DEPTH_LIMIT):
        raise FrontendError(f"`{param}` is nested deeper than {DEPTH_LIMIT} levels", param=param)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as e:
        raise FrontendError(f"`{param}` cannot be written as JSON", param=param) from e
    return f"```json\n{check_text(text, param)}\n```"


def parse(text: str, param: str) -> Any:
    """The value. Raises FrontendError for what is nested too deeply or takes too long to read.

    Raises ValueError for what Python does not read, an integer of more than 4,300 digits among it.
    """
    too_deep = FrontendError(f"`{param}` is nested deeper than {DEPTH_LIMIT} levels", param=param)
    brackets = text.count("[") + text.count("{")
    try:
        value = load(text)
    except TooLargeError:
        raise FrontendError(
            f"`{param}` has more than {SEPARATOR_LIMIT:,} separators (`,` `:` `[` `{{`) outside strings, or more "
            f"than {DIGIT_LIMIT:,} digits of long integers; send less, or the bulk of it as one string",
            param=param,
        ) from None
    except RecursionError:
        raise too_deep from None
    except ValueError:
        if brackets > DEPTH_LIMIT and _written_depth(text) > DEPTH_LIMIT:
            raise too_deep from None
        raise
    if brackets > DEPTH_LIMIT and deeper(value, DEPTH_LIMIT):
        raise too_deep
    return value


def load(text: str, *, parse_float: _Reader | None = None, parse_constant: _Reader | None = None) -> Any:
    """`json.loads`.

    Raises TooLargeError, and ValueError or RecursionError as `json.loads` does.
    """
    if _has_too_many_separators(text):
        raise TooLargeError("too many separators")
    return json.loads(text, parse_int=_Integers(), parse_float=parse_float, parse_constant=parse_constant)


def no_constant(name: str) -> NoReturn:
    """A `parse_constant`: Python reads NaN and the infinities, JSON has none. Raises ValueError."""
    raise ValueError(f"{name} is no JSON")


def write(value: Any) -> str:
    """With Python's own separators; of a parsed value."""
    return json.dumps(value, ensure_ascii=False)


def whole(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair."""
    return text if _encodes(text) else _SURROGATE.sub("\ufffd", text)


def check_text(text: str, param: str) -> str:
    """The text itself. Raises FrontendError for half of a surrogate pair."""
    if not _encodes(text):
        raise FrontendError(f"`{param}` holds half of a surrogate pair; send whole characters", param=param)
    return text


def write_escaped(value: Any) -> str:
    """As `write`, but with escapes where a text holds half of a surrogate pair."""
    text = write(value)
    return text if _encodes(text) else json.dumps(value)


def deeper(value: Any, levels: int) -> bool:
    """Whether a parsed value nests deeper than so many levels."""
    level = [value]
    for _ in range(levels):
        level = [
            child
            for node in level
            if isinstance(node, Mapping | list | tuple)
            for child in (node.values() if isinstance(node, Mapping) else node)
        ]
        if not level:
            return False
    return any(isinstance(node, Mapping | list | tuple) for node in level)


def _encodes(text: str) -> bool:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


class _Integers:
    """A `parse_int` that stops when all long ones together are too long."""

    __slots__ = ("_digits",)

    def __init__(self) -> None:
        self._digits = 0

    def __call__(self, digits: str) -> int:
        value = int(digits)
        if len(digits) > _MACHINE_DIGITS:
            self._digits += len(digits)
            if self._digits > DIGIT_LIMIT:
                raise TooLargeError("too many digits")
        return value


def _has_too_many_separators(text: str) -> bool:
    """A few passes, each of them quick: strings, source code for example, may hold as many as they like."""
    if sum(map(text.count, _SEPARATORS)) <= SEPARATOR_LIMIT:
        return False
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') > _QUOTES_A_SEPARATOR * SEPARATOR_LIMIT:
        return True
    outside = "".join(bare.split('"')[::2])
    return sum(map(outside.count, _SEPARATORS)) > SEPARATOR_LIMIT


def _written_depth(text: str) -> int:
    """Of the brackets outside strings, as far as they can be told in text that is not valid."""
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        first = match[0][0]
        if first in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in "]}":
            depth -= 1
    return deepest
