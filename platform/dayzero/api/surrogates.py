r"""A body with half of a surrogate pair in it: refused by the place where it stands, or mended where that is allowed.

- A half (`\ud83d` without its other half) is no text: no bytes stand for it. JSON lets a client write it all the same,
  and a client whose history holds one would be refused for ever: where `mendable` says so it becomes U+FFFD.
- Only for a body that was refused already, of any size. Linear: halves are looked for in windows, so that other threads
  have the interpreter in between; only the parser, as with any body, takes all of it in one step.
"""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from dayzero.api.errors import BodyError
from dayzero.api.json_path import Place, spelled, walk

WINDOW_BYTES = 128 * 1024
"""Read in one step, in milliseconds. Between two steps another thread may have the interpreter."""
MAX_HALVES = 65_536
"""Each is a step of its own; a body with more is refused as it is."""

_LONGEST_BYTES = 12
"""Of what must be seen whole to be known: a pair."""
_SOUND = re.compile(
    rb"(?:[^\\]++"
    rb"|\\[^u]"  # an escaped backslash too, so that what follows it is not taken for an escape
    rb"|\\u[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}"
    rb"|\\u[dD][0-7][0-9a-fA-F]{2}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb")*+",
    re.DOTALL,
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_HALF_BYTES = 6
_HALVES = "The body is not valid JSON: it holds halves of surrogate pairs."
_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Noncharacters, never text: a half is marked with one that the body does not have."""


def mended(body: bytes, mendable: Callable[[str], bool]) -> Any:
    """The parsed body without its halves; None where it holds none.

    Raises BodyError for a half in another place, and msgspec.DecodeError where the body is no JSON besides.
    """
    places = list(islice(halves(body), MAX_HALVES + 1))
    if not places:
        return None
    if len(places) > MAX_HALVES:
        raise BodyError(_HALVES, code="invalid_json")
    mark = _unused(body)
    escaped = _escaped(mark)
    marked = bytearray(body)
    for at in places:
        marked[at : at + _HALF_BYTES] = escaped
    return _mend(msgspec.json.decode(marked), mark, mendable)


def halves(body: bytes) -> Iterator[int]:
    """Where the escapes of halves stand, as far as the body's escapes are JSON's."""
    return (end for end, is_half in steps(body) if is_half)


def steps(body: bytes, window_bytes: int = WINDOW_BYTES) -> Iterator[tuple[int, bool]]:
    """How far each step came in `window_bytes` at most, and whether the escape of a half stands there."""
    at = 0
    while at < len(body):
        end = at + window_bytes
        sound = _SOUND.match(body, at, end)
        assert sound is not None, "nothing at all is sound, too"
        at = sound.end()
        is_cut = at + _LONGEST_BYTES > end and end < len(body)  # seen whole in the next window
        is_half = not is_cut and _HALF.match(body, at) is not None
        yield at, is_half
        if is_half:
            at += _HALF_BYTES
        elif not is_cut:
            return  # the end, or no escape of JSON, of which the parser speaks


def _escaped(mark: str) -> bytes:
    return f"\\u{ord(mark):x}".encode()


def _unused(body: bytes) -> str:
    windows = [body[at : at + WINDOW_BYTES + 5].lower() for at in range(0, len(body), WINDOW_BYTES)]
    for mark in _MARKS:
        spellings = (mark.encode(), _escaped(mark))
        if not any(spelling in window for window in windows for spelling in spellings):
            return mark
    raise BodyError(_HALVES, code="invalid_json")


def _mend(body: Any, mark: str, mendable: Callable[[str], bool]) -> Any:
    """In place."""
    for place, holder, value in walk(body):
        if isinstance(value, dict) and any(mark in name for name in value):
            raise _half(place, "a key")
        if isinstance(value, str) and mark in value:
            if place is None or not mendable(spelled(place)):
                raise _half(place, "the text")
            holder[place[1]] = value.replace(mark, "\ufffd")
    return body


def _half(place: Place, what: str) -> BodyError:
    path = spelled(place)
    return BodyError(
        f"Invalid `{path or 'body'}`: {what} holds half of a surrogate pair; send whole characters.",
        param=path or None,
        code="invalid_value",
    )
