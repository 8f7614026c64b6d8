"""Random strings: of a length, of a format, or that a pattern matches. The dice are given.

- A pattern is read, never run, and only as far as it is understood: what is not (lookarounds, references to groups,
  flags, boundaries) is an UnsupportedFeatureError.
"""

import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from re import _constants as op  # type: ignore[attr-defined]  # what the standard library reads patterns into
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final
from uuid import UUID

from dayzero.engine.errors import UnsupportedFeatureError

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz ABCDEF 0123456789 _-.,:äß漢字<>&\"'{}[]\n"
_PRINTED: Final = [chr(code) for code in range(0x20, 0x7F)]
_MORE: Final = 4
"""How often more than it must a repeat does."""
_FORMATS: Final[dict[str, Callable[[random.Random], str]]] = {
    "date": lambda dice: _moment(dice).date().isoformat(),
    "time": lambda dice: _moment(dice).time().isoformat() + "Z",
    "date-time": lambda dice: _moment(dice).isoformat().replace("+00:00", "Z"),
    "email": lambda dice: f"{_word(dice)}@{_word(dice)}.example",
    "uri": lambda dice: f"https://{_word(dice)}.example/{_word(dice)}",
    "hostname": lambda dice: f"{_word(dice)}.example",
    "uuid": lambda dice: str(UUID(int=dice.getrandbits(128), version=4)),
    "ipv4": lambda dice: ".".join(str(dice.randrange(256)) for _ in range(4)),
}


def text_of_length(dice: random.Random, least: int, most: int) -> str:
    return "".join(dice.choices(_LETTERS, k=dice.randint(least, most)))


def text_of_format(name: str, dice: random.Random, field: str) -> str:
    """Raises UnsupportedFeatureError."""
    make = _FORMATS.get(name)
    if make is None:
        raise UnsupportedFeatureError.of(
            field, f"the simulated engine makes no strings of that `format`; it knows {', '.join(_FORMATS)}"
        )
    return make(dice)


def text_of_pattern(pattern: str, dice: random.Random, field: str) -> str:
    """Raises UnsupportedFeatureError."""
    try:
        return _Writer(dice).sequence(parser.parse(pattern), ends=True)
    except (re.error, _NotUnderstood, RecursionError, OverflowError):
        raise UnsupportedFeatureError.of(
            field, "the simulated engine cannot write what a `pattern` of this schema matches: simplify it"
        ) from None


class _NotUnderstood(Exception):  # noqa: N818 - of this module alone
    """A part of a pattern."""


class _Writer:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def sequence(self, parts: Sequence[Any], *, ends: bool = False) -> str:
        """`ends`: the pattern itself, which may be anchored where it begins and ends."""
        nodes = list(parts)
        if ends and nodes and nodes[0] == (op.AT, op.AT_BEGINNING):
            nodes = nodes[1:]
        if ends and nodes and nodes[-1] == (op.AT, op.AT_END):
            nodes = nodes[:-1]
        return "".join(self._part(*node) for node in nodes)

    def _part(self, kind: Any, what: Any) -> str:  # noqa: PLR0911 - one for each kind
        match kind:
            case op.LITERAL:
                return chr(what)
            case op.NOT_LITERAL:
                return self._dice.choice([one for one in _PRINTED if ord(one) != what])
            case op.ANY:
                return self._dice.choice(_PRINTED)
            case op.IN:
                return self._of_class(what)
            case op.BRANCH:
                return self.sequence(self._dice.choice(what[1]))
            case op.SUBPATTERN:
                return self._group(what)
            case op.MAX_REPEAT | op.MIN_REPEAT:
                least, most, repeated = what
                times = self._dice.randint(least, min(int(most), least + _MORE))
                return "".join(self.sequence(repeated) for _ in range(times))
        raise _NotUnderstood

    def _group(self, what: Any) -> str:
        _, flags_on, flags_off, parts = what
        if flags_on or flags_off:
            raise _NotUnderstood
        return self.sequence(parts)

    def _of_class(self, members: Sequence[Any]) -> str:
        negated = bool(members) and members[0][0] == op.NEGATE
        tests = [_member(*member) for member in (members[1:] if negated else members)]
        allowed = [one for one in _PRINTED if any(test(one) for test in tests) != negated]
        if not allowed and not negated:
            allowed = [
                chr(what if kind == op.LITERAL else what[0]) for kind, what in members if kind != op.CATEGORY
            ]
        if not allowed:
            raise _NotUnderstood
        return self._dice.choice(allowed)


def _member(kind: Any, what: Any) -> Callable[[str], bool]:
    """Of a class: whether a character is one of it."""
    match kind:
        case op.LITERAL:
            return lambda one: ord(one) == what
        case op.RANGE:
            return lambda one: what[0] <= ord(one) <= what[1]
        case op.CATEGORY if what in _CATEGORIES:
            return _CATEGORIES[what]
    raise _NotUnderstood


_CATEGORIES: Final[dict[Any, Callable[[str], bool]]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda one: not one.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda one: not one.isspace(),
    op.CATEGORY_WORD: lambda one: one.isalnum() or one == "_",
    op.CATEGORY_NOT_WORD: lambda one: not (one.isalnum() or one == "_"),
}


def _moment(dice: random.Random) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=dice.randrange(10**8))


def _word(dice: random.Random) -> str:
    return "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(3, 8)))
