"""How large a regular expression is once its counted repeats are written out, as a grammar writes them.

- Linear in the pattern, which is read and never run.
- What is no valid pattern has a cost too: whether it compiles is for the engine to say.
"""

import re

MAX_CHARACTERS = 1024
MAX_GROUPS = 32
"""Within one another: engines read them by recursion, on a native stack."""
MAX_COST = 128
"""Tens of milliseconds of compiling for each character of a class such as `.` or `\\w`."""

_CLASS = re.compile(r"\[\^?(?:\\.|[^\]\\])*\]", re.DOTALL)
_TIMES = re.compile(r"\{(\d*)(?:,(\d*))?\}", re.ASCII)
_FEW_DIGITS = 4
_NO_TEXT = frozenset("*+?|^$")


def pattern_fault(pattern: str) -> str | None:
    """What is too much of it; None for a pattern that an engine may see."""
    if len(pattern) > MAX_CHARACTERS:
        return f"is longer than {MAX_CHARACTERS:,} characters"
    cost, groups = _read(pattern)
    if groups > MAX_GROUPS:
        return f"has groups nested deeper than {MAX_GROUPS} levels"
    if cost > MAX_COST:
        return f"is too long: repeats written out, a grammar holds at most {MAX_COST} characters of it"
    return None


def pattern_cost(pattern: str) -> int:
    """Characters and classes, each times the repeats around it."""
    return _read(pattern)[0]


def _read(pattern: str) -> tuple[int, int]:
    """Its cost, and how deep its groups are."""
    groups = [0]  # cost so far of each open group
    deepest = 1
    last = 0  # cost of what a repeat would apply to
    has_classes = True  # until a `[` is found that nothing closes: then no later one is closed either
    at = 0
    while at < len(pattern):
        character, start = pattern[at], at
        at += 1
        if character == "{" and (times := _TIMES.match(pattern, start)):
            at = times.end()
            repeats = max(_number(times[1]), _number(times[2] or ""), 1)
            groups[-1] += last * (repeats - 1)
            last *= repeats
        elif character == "(":
            groups.append(0)
            deepest = max(deepest, len(groups))
            last = 0
        elif character == ")":
            last = groups.pop() if len(groups) > 1 else 0
            groups[-1] += last
        elif character not in _NO_TEXT:
            groups[-1] += 1
            last = 1
            if character == "\\":
                at += 1
            elif character == "[" and has_classes:
                closed = _CLASS.match(pattern, start)
                has_classes = closed is not None
                at = closed.end() if closed else at
    return sum(groups), deepest - 1


def _number(digits: str) -> int:
    """Enough to be too many, for numbers of any length."""
    return int(digits or "0") if len(digits) <= _FEW_DIGITS else 10**_FEW_DIGITS
