"""Which text of a rendered template is the template's own control token, and which is only the user's text.

A control token is known by its spelling once a template has been rendered to one string. So the user's
strings go in with every possible spelling broken by private-use characters (marks) that occur nowhere else:

- one after each character that could begin a spelling, one before each that could end it;
- one before a string that is short enough to lie inside a spelling, and does.

What still is a spelling after rendering is the template's. `cut` finds those and takes the marks out of the rest.
The argument, and what a template may do to the strings, is in docs/adr/0002-user-strings-in-templates.md.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dayzero.frontend.chat_template.user_text import UserText

PRIVATE_USE = range(0xE000, 0xF900)
# The tokenizers' own classes (Rust's regex, by Unicode's properties); Python's take in U+001C to U+001F as white space.
_SPACES = frozenset("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    chr(c) for c in range(0x2000, 0x200B)
)
_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"})
_JOINERS = frozenset("\u200c\u200d")


@dataclass(frozen=True, slots=True)
class ControlToken:
    """An added token. `lstrip`/`rstrip`: it takes in the white space beside it; `single_word`: only between words."""

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the prompt: text (`control_id` None) or one control token. `at_start`: of the whole text."""

    text: str
    control_id: int | None = None
    at_start: bool = False


class Spellings:
    """The control tokens of one tokenizer, with the marks that keep user strings from spelling them.

    `reserved`: further strings that only a template may spell (a reasoning marker without an id of its own).
    """

    def __init__(
        self, controls: Iterable[ControlToken], *, reserved: Iterable[str] = (), marks: tuple[str, str]
    ) -> None:
        self._after, self._before = marks
        self._controls: Mapping[str, ControlToken] = {c.content: c for c in controls}
        spellings = sorted({*self._controls, *reserved}, key=len, reverse=True)
        self._firsts = _in_any_case(s[0] for s in spellings)
        self._lasts = _in_any_case(s[-1] for s in spellings)
        self._longest = max(map(len, spellings), default=0)
        self._insides = "\n".join(s[1:-1].lower() for s in spellings)
        self._pattern = self._literals([s for s in spellings if s in self._controls])

    def _literals(self, longest_first: list[str]) -> re.Pattern[str]:
        """The spellings by their first character: one look at the mark behind a user's character passes it over."""
        by_first: dict[str, list[str]] = {}
        for spelling in longest_first:
            by_first.setdefault(spelling[0], []).append(re.escape(spelling[1:]))
        groups = [f"{re.escape(c)}(?!{self._after})(?:{'|'.join(rest)})" for c, rest in by_first.items()]
        return re.compile("|".join(groups) or r"(?!)")

    def user(self, value: Any) -> Any:
        """A value of the request (as JSON gives it) with each string in it marked as the user's, keys too."""
        if isinstance(value, str):
            clean = value.clean if isinstance(value, UserText) else str.__str__(value)
            return UserText(clean, self._broken(clean), self.user)
        if isinstance(value, Mapping):
            return {self.user(key): self.user(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.user(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self.user(item) for item in value)
        return value

    def _broken(self, text: str) -> str:
        broken = text
        for first in self._firsts:
            broken = broken.replace(first, first + self._after)
        for last in self._lasts:
            broken = broken.replace(last, self._before + last)
        word = text.strip() or text
        if word and len(word) < self._longest and word.lower() in self._insides:
            # Before the word, so that trimming still finds the white space, and before that too.
            at = text.index(word)
            broken = self._before * (at > 0) + broken[:at] + self._before + broken[at:]
        return broken

    def cut(self, rendered: str) -> Iterator[Piece]:
        """The pieces of a rendered template in order, empty ones left out."""
        done = 0
        for match in self._pattern.finditer(rendered):
            control = self._controls[match.group()]
            start, end = match.span()
            if control.single_word and not _stands_alone(rendered, start, end):
                continue
            if control.lstrip:
                start = self._past_spaces(rendered, range(start - 1, done - 1, -1), start)
            if control.rstrip:
                end = self._past_spaces(rendered, range(end, len(rendered)), end - 1) + 1
            yield from self._text(rendered[done:start], at_start=done == 0)
            yield Piece(control.content, control.id)
            done = end
        yield from self._text(rendered[done:], at_start=done == 0)

    def _past_spaces(self, rendered: str, places: range, before: int) -> int:
        """The last of `places` up to which all is white space, marks in it aside; `before` where there is none."""
        last = before
        for place in places:
            if rendered[place] in _SPACES:
                last = place
            elif rendered[place] not in (self._before, self._after):
                break
        return last

    def _text(self, marked: str, *, at_start: bool) -> Iterator[Piece]:
        text = self.unmarked(marked)
        if text:
            yield Piece(text, at_start=at_start)

    def unmarked(self, marked: str) -> str:
        return marked.replace(self._after, "").replace(self._before, "")


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not _is_word(text[max(0, start - 1) : start]) and not _is_word(text[end : end + 1])


def _is_word(character: str) -> bool:
    """Of one character, or of none at an end of the text."""
    return bool(character) and (unicodedata.category(character) in _WORD_CATEGORIES or character in _JOINERS)


def _in_any_case(characters: Iterable[str]) -> list[str]:
    return sorted({same for c in characters for same in (c, c.lower(), c.upper()) if len(same) == 1})


def unused_marks(texts: Iterable[str]) -> tuple[str, str]:
    """Two private-use characters that are in none of the texts. Raises LookupError if there are none left."""
    used = {c for text in texts if not text.isascii() for c in set(text)}
    free = [chr(c) for c in islice((c for c in PRIVATE_USE if chr(c) not in used), 2)]
    if len(free) < 2:
        raise LookupError("every private-use character is in use")
    return free[0], free[1]
