"""Markers in an answer: `<|open|>` or `<|close|>`, the text of a tag, `<|sep|>`.

- Only special ids make a marker; text that spells one is text.
- A tag's text is read leniently: any white space, attributes in any order, what is no attribute is passed over.
- Reading is linear in the text; what may be held for it is bounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dayzero.frontend.detokenizer import TokenTable

CHANNELS = frozenset({"think", "response", "tools"})
ELEMENTS = CHANNELS | {"message", "call", "argument", "json"}

NAME_TOKENS = 32
"""By then a tag has shown that its name is one of ours, or it is no tag."""
TAG_TOKENS = 1024
"""The longest tag. A tool's name has at most 256 characters, a key has what its schema says."""


@dataclass(frozen=True, slots=True)
class Marker:
    """`name` is empty where the tag has none."""

    closes: bool
    name: str
    attributes: Mapping[str, str]

    @property
    def known(self) -> bool:
        return self.name in ELEMENTS


def read_marker(text: str, *, closes: bool) -> Marker:
    """Of the text between a marker's first id and its `<|sep|>`."""
    # A value holds no quote of its own (it is written &quot;), so every second part is one.
    parts = text.split('"')
    words = parts[0].split(None, 1)
    name = words[0] if words else ""
    attributes: dict[str, str] = {}
    for before, value in zip([words[1] if len(words) > 1 else "", *parts[2::2]], parts[1::2], strict=False):
        key, equals, after = before.rpartition("=")
        names = key.split()
        if equals and names and not after.strip():
            attributes.setdefault(names[-1], value.replace("&quot;", '"').replace("&amp;", "&"))
    return Marker(closes, name, attributes)


class TagReader:
    """The tag that is open: the ids between a marker and its `<|sep|>`."""

    __slots__ = ("_ids", "_table", "closes")

    def __init__(self, table: TokenTable, *, closes: bool) -> None:
        self._table = table
        self._ids: list[int] = []
        self.closes = closes

    @property
    def ids(self) -> list[int]:
        return self._ids

    def push(self, ids: Sequence[int]) -> Sequence[int] | None:
        """None while it may be a tag; else the ids that came after it was known to be none."""
        rest = ids
        for limit in (NAME_TOKENS, TAG_TOKENS):
            room = limit - len(self._ids)
            if room <= 0:
                continue
            self._ids += rest[:room]
            rest = rest[room:]
            if len(self._ids) < limit:
                return None
            if limit == TAG_TOKENS or not self.marker().known:
                return rest
        return None

    def marker(self) -> Marker:
        text = self._table.bytes_of(self._ids).decode("utf-8", "replace")
        return read_marker(text, closes=self.closes)
