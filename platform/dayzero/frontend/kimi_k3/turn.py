"""The elements of one answer: which of them is open, and what becomes of text and markers there.

- Any opener or closer of a channel ends the channel that is open, whichever that is.
- Text outside every channel is content: the model forgot to open `response`.
- After the close of `message`, or the stop id, nothing is part of the answer.
"""

from collections.abc import Sequence
from enum import Enum, auto

from dayzero.frontend.conversation import ResponseFormatKind
from dayzero.frontend.detokenizer import Detokenizer
from dayzero.frontend.events import Event
from dayzero.frontend.kimi_k3.calls import CallWriter
from dayzero.frontend.kimi_k3.content import ContentWriter, append_reasoning
from dayzero.frontend.kimi_k3.markers import Marker
from dayzero.frontend.kimi_k3.oddities import Oddities, Oddity
from dayzero.frontend.kimi_k3.tally import Tally
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from dayzero.frontend.protocol import Channel, Expected


class Place(Enum):
    """Where the next text belongs."""

    THINK = auto()
    RESPONSE = auto()
    TOOLS = auto()
    CALL = auto()
    OUTSIDE = auto()
    CLOSED = auto()
    """`message` is closed: only the stop id may follow."""
    ENDED = auto()


_CHANNELS = {"think": Place.THINK, "response": Place.RESPONSE, "tools": Place.TOOLS}
_NOT_CLOSED = {
    Place.THINK: Oddity.THINK_NOT_CLOSED,
    Place.RESPONSE: Oddity.RESPONSE_NOT_CLOSED,
    Place.TOOLS: Oddity.TOOLS_NOT_CLOSED,
}
_LATER = {
    Place.THINK: {Place.RESPONSE, Place.TOOLS},
    Place.RESPONSE: {Place.TOOLS},
    Place.TOOLS: set[Place](),
}


class Turn:
    __slots__ = (
        "_in_tools",
        "_oddities",
        "_opened",
        "_table",
        "_text",
        "blank_ids",
        "calls",
        "content",
        "place",
        "tally",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        start: Channel,
        expected: Expected,
        stop: Sequence[str],
        oddities: Oddities,
    ) -> None:
        self._table = vocabulary.table
        self._text = text = Detokenizer(vocabulary.table)
        self._oddities = oddities
        self.tally = tally = Tally()
        keep = expected.response_format.kind is not ResponseFormatKind.TEXT
        self.content = ContentWriter(vocabulary.table, text, stop, tally, keep=keep)
        self.calls = CallWriter(text, expected, tally, oddities)
        self.place = _CHANNELS[start]
        self._opened = {self.place}
        self._in_tools = False
        self.blank_ids = 0
        """Outside a channel, and no character yet that is not white space."""

    def push(self, ids: Sequence[int], events: list[Event]) -> None:
        """Text ids."""
        place = self.place
        if place is Place.RESPONSE:
            self.content.push(ids, events)
        elif place is Place.THINK:
            self.tally.reasoning += len(ids)
            text = self._text.push(ids)
            if text:
                append_reasoning(events, text)
        elif place is Place.CALL:
            self.calls.push(ids, events)
        elif place is Place.OUTSIDE:
            self._push_outside(ids, events)
        else:
            self.tally.dropped += len(ids)
            if place is not Place.TOOLS:
                self._oddities.note(Oddity.TEXT_AFTER_END)
            elif self._table.bytes_of(ids).strip():
                self._oddities.note(Oddity.TEXT_IN_TOOLS)

    def end_text(self, events: list[Event]) -> None:
        """A marker follows: an incomplete code point is all that comes of its bytes."""
        if self.place is Place.CALL:
            self.calls.end_text(events)
            return
        text = self._text.finish()
        if text and self.place is Place.RESPONSE:
            self.content.write(text, events)
        elif text and self.place is Place.THINK:
            append_reasoning(events, text)
        elif text:
            self._begin_answer(text, events)
        self._drop_blank()

    def take(self, marker: Marker, ids: int, events: list[Event]) -> None:
        """A whole tag of `ids` ids."""
        if not marker.known:
            self.drop(ids, Oddity.TAG_UNKNOWN)
        elif marker.name in _CHANNELS:
            self._take_channel(marker, _CHANNELS[marker.name], ids, events)
        elif marker.name == "message":
            self.tally.control += ids
            self._leave(events)
            if not marker.closes:
                self._oddities.note(Oddity.MESSAGE_OPENED)
            self.place = Place.CLOSED if marker.closes else Place.OUTSIDE
        elif marker.name == "call":
            self._take_call(marker, ids, events)
        else:
            self._take_argument(marker, ids, events)

    def end(self, events: list[Event]) -> None:
        """The stop id, or the engine's word for it."""
        if self.place not in (Place.CLOSED, Place.ENDED):
            self._leave(events, turn_ends=True)
            self._oddities.note(Oddity.MESSAGE_NOT_CLOSED)
        self.place = Place.ENDED

    def cut(self, events: list[Event]) -> None:
        """The answer was cut off here."""
        self._text.finish()
        self._drop_blank()
        if self.place is Place.RESPONSE:
            self.content.end(events)
        elif self.place is Place.CALL:
            self._oddities.note(Oddity.CALL_CUT)
            self.calls.end(events, complete=False)
        self.place = Place.ENDED

    def drop(self, ids: int, oddity: Oddity) -> None:
        self.tally.dropped += ids
        self._oddities.note(oddity)

    def _push_outside(self, ids: Sequence[int], events: list[Event]) -> None:
        """An id at a time: the first that is not white space begins the answer."""
        for at, token in enumerate(ids):
            text = self._text.push((token,))
            self.blank_ids += 1
            if not text:
                continue
            if text.isspace():
                self._drop_blank()
                continue
            self._begin_answer(text, events)
            rest = ids[at + 1 :]
            if self.content.stop is not None:
                self.tally.dropped += len(rest)
            elif rest:
                self.content.push(rest, events)
            return

    def _begin_answer(self, text: str, events: list[Event]) -> None:
        self._oddities.note(Oddity.TEXT_OUTSIDE)
        self.place = Place.RESPONSE
        self.tally.content += self.blank_ids
        self.blank_ids = 0
        self.content.write(text.lstrip(), events)

    def _drop_blank(self) -> None:
        self.tally.dropped += self.blank_ids
        self.blank_ids = 0

    def _leave(self, events: list[Event], *, turn_ends: bool = False) -> None:
        """What is open ends with a marker that is not its own."""
        if self.place is Place.CALL:
            self._oddities.note(Oddity.CALL_NOT_CLOSED)
            self.calls.end(events, complete=not (turn_ends and self.calls.in_element))
            self.place = Place.TOOLS if self._in_tools else Place.OUTSIDE
        if self.place in _NOT_CLOSED:
            self._oddities.note(_NOT_CLOSED[self.place])
        self._close_channel(events)

    def _close_channel(self, events: list[Event]) -> None:
        if self.place is Place.RESPONSE:
            self.content.end(events)
        self.place = Place.OUTSIDE
        self._in_tools = False

    def _take_channel(self, marker: Marker, channel: Place, ids: int, events: list[Event]) -> None:
        if channel is Place.TOOLS and self.calls.refused:
            self.drop(ids, Oddity.TOOLS_NOT_EXPECTED)
        else:
            self.tally.control += ids
        inner = self.place is Place.CALL and self._in_tools and channel is Place.TOOLS
        if inner:
            self._oddities.note(Oddity.CALL_NOT_CLOSED)
            self.calls.end(events, complete=True)
            self.place = Place.TOOLS
        if not marker.closes:
            self._open_channel(channel, events)
        elif self.place is channel:
            self._close_channel(events)
        else:
            self._oddities.note(Oddity.CLOSE_MISMATCHED)
            if self.place is not Place.OUTSIDE:
                self._leave(events)

    def _open_channel(self, channel: Place, events: list[Event]) -> None:
        if channel in self._opened:
            self._oddities.note(Oddity.CHANNEL_REPEATED)
        elif self._opened & _LATER[channel]:
            self._oddities.note(Oddity.CHANNEL_OUT_OF_ORDER)
        self._opened.add(channel)
        if self.place is not channel:
            self._leave(events)
        self.place = channel
        self._in_tools = channel is Place.TOOLS

    def _take_call(self, marker: Marker, ids: int, events: list[Event]) -> None:
        if marker.closes:
            if self.place is not Place.CALL:
                self.drop(ids, Oddity.CLOSE_MISMATCHED)
                return
            self.calls.count_close(ids)
            self.calls.end(events, complete=True)
            self.place = Place.TOOLS if self._in_tools else Place.OUTSIDE
            return
        if self.place is Place.CALL and self._in_tools:
            self._oddities.note(Oddity.CALL_NOT_CLOSED)
            self.calls.end(events, complete=True)
        elif not self._in_tools:
            self._leave(events)
            self._oddities.note(Oddity.CALL_WITHOUT_TOOLS)
        self.place = Place.CALL
        self.calls.start(marker.attributes, ids, events)

    def _take_argument(self, marker: Marker, ids: int, events: list[Event]) -> None:
        if self.place is not Place.CALL:
            self.drop(ids, Oddity.CLOSE_MISMATCHED if marker.closes else Oddity.ARGUMENT_WITHOUT_CALL)
        elif not marker.closes:
            self.calls.start_element(marker, ids, events)
        elif self.calls.in_element:
            self.calls.count_close(ids)
            self.calls.end_element(events)
        else:
            self.drop(ids, Oddity.CLOSE_MISMATCHED)
