"""Stop strings over a stream of text: an Aho-Corasick automaton that knows what it may already show.

- The match whose end comes first wins; of those that end together, the longest. The text ends before it.
- Held back is exactly the longest suffix that may still become a stop string, nothing more.
- Split in any way, the outcome is that of the whole text. What was flushed is shown, and the rest of a stop string that
  begins in it is not: no text that is shown ever holds a whole one.
- Linear in the text, whatever the strings; text without a first character of one is passed at C speed.
"""

import re
from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of a set of stop strings; made once, used by any number of matchers.

    A state is a prefix of a stop string: the longest one that the text so far ends with.
    """

    __slots__ = ("depth", "ends", "fail", "first", "step")

    def __init__(self, strings: Sequence[str]) -> None:
        """Raises ValueError for an empty string."""
        if not all(strings):
            raise ValueError("a stop string is empty")
        self.step: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.ends: list[str | None] = [None]
        for string in strings:
            self._add(string)
        self._link()
        self.first = re.compile("[" + "".join(re.escape(c) for c in self.step[0]) + "]") if strings else None

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            after = self.step[state].get(character)
            if after is None:
                after = len(self.step)
                self.step[state][character] = after
                self.step.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.ends.append(None)
            state = after
        self.ends[state] = string

    def _link(self) -> None:
        """Breadth first, so that the state a link leads to is finished before it is used."""
        waiting = deque(self.step[0].values())
        while waiting:
            state = waiting.popleft()
            for character, after in self.step[state].items():
                self.fail[after] = self.next(self.fail[state], character)
                waiting.append(after)
            if self.ends[state] is None:
                self.ends[state] = self.ends[self.fail[state]]

    def next(self, state: int, character: str) -> int:
        while (after := self.step[state].get(character)) is None:
            if state == 0:
                return 0
            state = self.fail[state]
        return after


class StopMatcher:
    """One stream's place in the automaton. `matched`: the string that was met; `rest`: what was pushed behind it."""

    __slots__ = ("_held", "_state", "_strings", "matched", "rest")

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = 0
        self._held = ""
        self.matched: str | None = None
        self.rest = ""

    def push(self, text: str) -> str:
        """The text that is certain to be shown after `text`. After a match nothing is."""
        strings = self._strings
        if strings.first is None:
            return text
        if self.matched is not None:
            return ""
        seen = self._held + text
        at, state = len(self._held), self._state
        while at < len(seen):
            if state == 0:
                candidate = strings.first.search(seen, at)
                if candidate is None:
                    break
                at = candidate.start()
            state = strings.next(state, seen[at])
            at += 1
            stop = strings.ends[state]
            if stop is not None:
                self.matched, self.rest, self._held = stop, seen[at:], ""
                return seen[: max(0, at - len(stop))]
        self._state = state
        certain = max(0, len(seen) - strings.depth[state])
        self._held = seen[certain:]
        return seen[:certain]

    def flush(self) -> str:
        """What was held: it may wait no longer. A stop string that it begins is still met if later text completes it."""
        held, self._held = self._held, ""
        return held
