"""The visible text of one answer: what stop strings let through of the response, and reasoning.

- Stop strings apply to content only. The ids behind the one that completes a match are dropped, in whatever split.
- A channel that ends shows what was held for a stop string; content that comes later may still complete it.
- The whole content is kept only where it is to be checked (`keep`).
"""

import codecs
from collections.abc import Sequence

from dayzero.frontend.detokenizer import Detokenizer, TokenTable
from dayzero.frontend.events import Content, Event, Reasoning
from dayzero.frontend.kimi_k3.tally import Tally
from dayzero.frontend.stop_strings import StopMatcher, StopStrings

JOIN_CHARACTERS = 512
"""An event shorter than this takes up the next text of its kind in the same delta; bounded, or joining were quadratic."""


class ContentWriter:
    """`text`: the answer's detokenizer."""

    __slots__ = ("_kept", "_stop", "_stops", "_table", "_tally", "_text")

    def __init__(
        self, table: TokenTable, text: Detokenizer, stop: Sequence[str], tally: Tally, *, keep: bool
    ) -> None:
        self._table = table
        self._text = text
        self._stops = bool(stop)
        self._stop = StopMatcher(StopStrings(stop))
        self._tally = tally
        self._kept: list[str] | None = [] if keep else None

    @property
    def stop(self) -> str | None:
        """The stop string that was met."""
        return self._stop.matched

    @property
    def kept(self) -> str | None:
        return None if self._kept is None else "".join(self._kept)

    def push(self, ids: Sequence[int], events: list[Event]) -> None:
        self._tally.content += len(ids)
        if not self._stops:
            text = self._text.push(ids)
            if text:
                self._show(text, events)
            return
        held = self._text.held
        text = self._text.push(ids)
        self.write(text, events)
        if self._stop.matched is not None:
            behind = _ids_behind(self._table, held, ids, len(text) - len(self._stop.rest))
            self._tally.content -= behind
            self._tally.dropped += behind

    def write(self, text: str, events: list[Event]) -> None:
        """Content whose ids are counted already."""
        self._show(self._stop.push(text), events)

    def end(self, events: list[Event]) -> None:
        """Of the channel."""
        self._show(self._stop.flush(), events)

    def _show(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        if self._kept is not None:
            self._kept.append(text)
        last = events[-1] if events else None
        if isinstance(last, Content) and len(last.text) < JOIN_CHARACTERS:
            events[-1] = Content(last.text + text)
        else:
            events.append(Content(text))


def append_reasoning(events: list[Event], text: str) -> None:
    last = events[-1] if events else None
    if isinstance(last, Reasoning) and len(last.text) < JOIN_CHARACTERS:
        events[-1] = Reasoning(last.text + text)
    else:
        events.append(Reasoning(text))


def _ids_behind(table: TokenTable, held: bytes, ids: Sequence[int], characters: int) -> int:
    """How many of `ids` come after the one that completes the first `characters` of their text.

    `held`: the bytes of an incomplete code point before them.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    seen = len(utf8.decode(held))
    for at, token in enumerate(ids):
        seen += len(utf8.decode(table.bytes_of((token,))))
        if seen >= characters:
            return len(ids) - at - 1
    return 0
