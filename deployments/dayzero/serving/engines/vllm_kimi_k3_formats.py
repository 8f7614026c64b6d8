"""The nodes of a structural tag in which markers are token ids, never their spelling.

- A string of vLLM's tag is split at the markers it spells; the strings of a request never come here.
"""

import re
from typing import Any

from dayzero.frontend.kimi_k3.specials import Specials

Format = dict[str, Any]
"""A structural tag's node, as parsed JSON."""

ANY_CHARACTER = "(?:[^<]|<)"
"""xgrammar compiles a counter of these in milliseconds, where one of `[\\s\\S]` takes seconds."""

MAX_STATES = 128
"""Of patterns and lengths of strings inside JSON, over the whole turn: xgrammar takes 13 ms for each over K3's vocabulary."""
_COUNTED_FROM = 128
"""More characters than this are a counter."""

_COUNTER = 4
"""What one costs, in states."""
MAX_SKIPS = 1024
"""`minProperties` times the properties that may be left out, over the whole turn."""
MAX_COUNTED = 96
"""Arguments with a `maxLength` over the whole turn: 17 ms each. The others have no bound."""

_MARKER = re.compile(r"<\|(open|close|sep)\|>")


class Exact:
    """`text_characters`: as in `TurnGrammar`."""

    def __init__(self, specials: Specials, text_characters: int | None) -> None:
        self._ids = {"open": specials.open, "close": specials.close, "sep": specials.sep}
        self.text_characters = text_characters
        self._states_left = MAX_STATES
        self._counted_left = MAX_COUNTED
        self._skips_left = MAX_SKIPS

    def may_spell(self, least: int, most: int | None) -> bool:
        """Whether this turn's grammar has room for one more string of such a length inside JSON, which it then takes.

        A model that does not know when to stop gets every bound, whatever that costs.
        """
        if self.text_characters is not None:
            return True
        states = least if most is None else most
        states = _COUNTER if least > _COUNTED_FROM else min(states, _COUNTED_FROM)
        return self.may_take(states)

    def may_take(self, states: int) -> bool:
        """Whether there is room for so many more states of patterns and lengths, which it then takes."""
        if states > self._states_left:
            return False
        self._states_left -= states
        return True

    def may_skip(self, least: int, declared: int) -> bool:
        """The same of an object that must have so many of those it declares."""
        skips = least * max(0, declared - least)
        if skips > self._skips_left:
            return False
        self._skips_left -= skips
        return True

    def text(self, least: int = 0, most: int | None = None) -> Format:
        """Any text of so many characters."""
        if most is None and self.text_characters is not None:
            most = max(least, self.text_characters)
        elif most:
            self._counted_left -= 1
            most = most if self._counted_left >= 0 else None
        rest: Format = {"type": "any_text", "excludes": []}
        if most is not None:
            rest["max_chars"] = most - least
        if not least:
            return rest
        return sequence({"type": "regex", "pattern": f"{ANY_CHARACTER}{{{least}}}"}, rest)

    def open(self, tag: str) -> list[Format]:
        return self.marked(f"<|open|>{tag}<|sep|>")

    def close(self, tag: str) -> list[Format]:
        return self.marked(f"<|close|>{tag}<|sep|>")

    def marked(self, spelled: str) -> list[Format]:
        """A string of the format's own, its markers as ids."""
        parts = _MARKER.split(spelled)  # text and names of markers in turn
        return [
            {"type": "token", "token": self._ids[part]} if i % 2 else literal(part)
            for i, part in enumerate(parts)
            if part
        ]


def literal(text: str) -> Format:
    return {"type": "const_string", "value": text}


def sequence(*elements: Format) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def either(*elements: Format) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def plus(content: Format) -> Format:
    return {"type": "plus", "content": content}


def repeat(content: Format, least: int, most: int) -> Format:
    return {"type": "repeat", "min": least, "max": most, "content": content}
