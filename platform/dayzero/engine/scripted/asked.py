"""What a prompt asks, read from its ids as far as a script needs it.

- Only the prompt's first ids and its last `TAIL_TOKENS` are looked at, however long it is.
- Ids that are no prompt of Kimi K3 ask nothing: never an error.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dayzero.engine.types import TokenIds
from dayzero.frontend.kimi_k3.markers import Marker, read_marker
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from dayzero.frontend.protocol import Channel

TAIL_TOKENS = 8192
"""Of a longer message the end is read."""
_TAG_TOKENS = 512

Role = Literal["user", "tool"]


@dataclass(frozen=True, slots=True)
class Asked:
    """`text`: of the last message of a user or a tool. `start`: the channel left open. `tools`: some are declared."""

    text: str = ""
    role: Role = "user"
    start: Channel = Channel.RESPONSE
    tools: bool = False


def read(ids: TokenIds, vocabulary: Vocabulary) -> Asked:
    tail = ids[-TAIL_TOKENS:]
    reader = _Reader(vocabulary, tail)
    last = reader.last_open()
    start = Channel.THINK if last is not None and last.name == Channel.THINK else Channel.RESPONSE
    text, role = reader.last_message(whole=len(tail) == len(ids))
    first = _Reader(vocabulary, ids[:_TAG_TOKENS]).first_open()
    tools = first is not None and first.attributes.get("type") == "tool-declare"
    return Asked(text, role, start, tools)


class _Reader:
    def __init__(self, vocabulary: Vocabulary, ids: TokenIds) -> None:
        self._table = vocabulary.table
        self._sep = vocabulary.specials.sep
        self._ids = ids
        self._opens = np.flatnonzero(ids == vocabulary.specials.open).tolist()
        self._closes = np.flatnonzero(ids == vocabulary.specials.close).tolist()

    def first_open(self) -> Marker | None:
        return self._marker(self._opens[0])[0] if self._opens else None

    def last_open(self) -> Marker | None:
        return self._marker(self._opens[-1])[0] if self._opens else None

    def last_message(self, *, whole: bool) -> tuple[str, Role]:
        """Nothing where there is none; of one that began before these ids, what there is of it."""
        for at in reversed(self._opens):
            marker, begin = self._marker(at)
            role = marker.attributes.get("role") if marker.name == "message" else None
            if role == "user":
                return self._text(begin), "user"
            if role == "tool":
                return self._text(begin), "tool"
        return ("", "user") if whole else (self._text(0), "user")

    def _marker(self, at: int) -> tuple[Marker, int]:
        """The tag that opens at `at`, and where it ends."""
        window = self._ids[at + 1 : at + 1 + _TAG_TOKENS]
        seps = np.flatnonzero(window == self._sep)
        length = int(seps[0]) if len(seps) else len(window)
        text = self._table.bytes_of(window[:length].tolist()).decode("utf-8", "replace")
        return read_marker(text, closes=False), at + 1 + length + 1

    def _text(self, begin: int) -> str:
        end = next((at for at in self._closes if at >= begin), len(self._ids))
        return self._table.bytes_of(self._ids[begin:end].tolist()).decode("utf-8", "replace")
