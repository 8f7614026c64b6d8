"""Refusals: which keys the server refuses to serve, time after time; pure.

- Everything under the feed's keys can be told again, so a key under which somebody left something else is deleted.
- One refusal may be another's mending seen half-way: only `GIVE_UP_AFTER` in a row count.
"""

from typing import Final

GIVE_UP_AFTER: Final = 5


class Refusals:
    def __init__(self) -> None:
        self._in_a_row: dict[str, int] = {}

    def heard(self, key: str, *, refused: bool) -> None:
        if refused:
            self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
        else:
            self._in_a_row.pop(key, None)

    def given_up(self) -> tuple[str, ...]:
        """The keys to delete now; they start anew."""
        keys = tuple(key for key, times in self._in_a_row.items() if times >= GIVE_UP_AFTER)
        for key in keys:
            del self._in_a_row[key]
        return keys
