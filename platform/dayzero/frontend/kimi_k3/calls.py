"""The tool calls of one answer: their elements and text in, events and token counts out.

- The fragments of a complete call, joined, are one JSON object as Python writes it; those of an incomplete one are the
  beginning of such an object.
- A string argument is sent as it comes; any other value when it is complete.
- A call that is not sent leaves no event, and all its ids are dropped.
- What is wrong with a call is noted, never raised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from dayzero.frontend.conversation import Tool, ToolChoiceMode
from dayzero.frontend.detokenizer import Detokenizer
from dayzero.frontend.events import Event, ToolArguments, ToolEnd, ToolStart
from dayzero.frontend.kimi_k3.content import JOIN_CHARACTERS
from dayzero.frontend.kimi_k3.markers import Marker
from dayzero.frontend.kimi_k3.oddities import Oddities, Oddity
from dayzero.frontend.kimi_k3.python_json import VALUE_TYPES, write_escaped
from dayzero.frontend.kimi_k3.tally import Tally
from dayzero.frontend.kimi_k3.validation import CallCheck, check_call, json_type
from dayzero.frontend.kimi_k3.values import parse, string_inside
from dayzero.frontend.protocol import Expected

NAME_CHARACTERS = 256
"""The longest name of a tool. A longer one could be anything, and would stand in the answer twice."""


class _Reading(Enum):
    """What a call's text is."""

    LOOSE = auto()
    """Outside the arguments: perhaps a bare JSON object."""
    STRING = auto()
    TYPED = auto()
    BODY = auto()
    """Of a `json` element."""
    NOTHING = auto()


@dataclass(slots=True)
class _Call:
    """The open call. `arguments`: their JSON types. `parts` and `held_tokens`: text that is not sent yet."""

    sent: bool
    tool: Tool | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    reading: _Reading = _Reading.LOOSE
    has_elements: bool = False
    key: str = ""
    parts: list[str] = field(default_factory=list)
    held_tokens: int = 0

    @property
    def in_element(self) -> bool:
        return self.reading is not _Reading.LOOSE


class CallWriter:
    """`text`: the answer's detokenizer; whoever owns it ends it at markers (`end_text`)."""

    __slots__ = ("_call", "_expected", "_oddities", "_tally", "_text", "_tools", "complete", "sent")

    def __init__(self, text: Detokenizer, expected: Expected, tally: Tally, oddities: Oddities) -> None:
        self._text = text
        self._expected = expected
        self._tally = tally
        self._oddities = oddities
        self._tools = {tool.name: tool for tool in expected.tools or ()}
        self._call: _Call | None = None
        self.sent = 0
        self.complete = False
        """The last call that was sent is."""

    @property
    def refused(self) -> bool:
        """No call may be made."""
        return self._expected.tools == () or self._expected.choice.mode is ToolChoiceMode.NONE

    @property
    def held_tokens(self) -> int:
        return 0 if self._call is None else self._call.held_tokens

    @property
    def in_element(self) -> bool:
        return self._call is not None and self._call.in_element

    def start(self, attributes: Mapping[str, str], tag_ids: int, events: list[Event]) -> None:
        name = attributes.get("tool", "").strip()
        self._call = call = _Call(sent=self._may_send(name))
        if not call.sent:
            self._tally.dropped += tag_ids
            return
        self._count_tag(tag_ids)
        call.tool = self._tools.get(name)
        if self._expected.tools is not None and call.tool is None:
            self._oddities.note(Oddity.TOOL_UNKNOWN)
        choice = self._expected.choice
        if choice.mode is ToolChoiceMode.NAMED and choice.name != name:
            self._oddities.note(Oddity.TOOL_NOT_CHOSEN)
        if attributes.get("index", "").strip() != str(self.sent + 1):
            self._oddities.note(Oddity.CALL_INDEX_WRONG)
        events.append(ToolStart(self.sent, name))
        self.sent += 1
        self.complete = False

    def start_element(self, marker: Marker, tag_ids: int, events: list[Event]) -> None:
        """An argument or a `json` element."""
        call = self._enter_element(events)
        if marker.name == "argument":
            self._start_argument(call, marker.attributes, tag_ids, events)
        elif call.sent:
            self._count_tag(tag_ids)
            call.reading = _Reading.BODY
        else:
            self._tally.dropped += tag_ids
            call.reading = _Reading.NOTHING

    def _start_argument(
        self, call: _Call, attributes: Mapping[str, str], tag_ids: int, events: list[Event]
    ) -> None:
        key, kind = attributes.get("key"), attributes.get("type", "").strip()
        if key is None:
            self._oddities.note(Oddity.ARGUMENT_WITHOUT_KEY)
        elif key in call.arguments:
            self._oddities.note(Oddity.ARGUMENT_REPEATED)
        if not call.sent or key is None or key in call.arguments:
            call.reading = _Reading.NOTHING
            self._tally.dropped += tag_ids
            return
        self._count_tag(tag_ids)
        if not kind:
            self._oddities.note(Oddity.ARGUMENT_WITHOUT_TYPE)
        elif kind not in VALUE_TYPES:
            self._oddities.note(Oddity.ARGUMENT_TYPE_UNKNOWN)
        call.key = key
        if kind in ("string", ""):
            call.reading = _Reading.STRING
            self._write_member(call, key, "string", '"', events)
        else:
            call.reading = _Reading.TYPED

    def push(self, ids: Sequence[int], events: list[Event]) -> None:
        """Text within the call."""
        call = self._call
        assert call is not None
        if not call.sent or call.reading is _Reading.NOTHING:
            self._tally.dropped += len(ids)
            return
        text = self._text.push(ids)
        if call.reading is _Reading.STRING:
            self._tally.calls += len(ids)
        else:
            call.held_tokens += len(ids)
        if text:
            self._take(call, text, events)

    def count_close(self, tag_ids: int) -> None:
        """The closing tag of what is open."""
        call = self._call
        if call is None or not call.sent or call.reading is _Reading.NOTHING:
            self._tally.dropped += tag_ids
        else:
            self._tally.control += tag_ids

    def end_text(self, events: list[Event]) -> None:
        """A marker follows: what the detokenizer held is all that comes of it."""
        text = self._text.finish()
        if text and self._call is not None:
            self._take(self._call, text, events)

    def end_element(self, events: list[Event]) -> None:
        """Of an argument or a `json` element."""
        call = self._call
        assert call is not None
        reading, call.reading = call.reading, _Reading.LOOSE
        if reading is _Reading.STRING:
            self._write('"', events)
            return
        if reading is _Reading.NOTHING:
            return
        text = self._held_text(call, used=True)
        if reading is _Reading.BODY:
            if not text.strip() or self._write_members(call, text, events):
                self._oddities.note(Oddity.ARGUMENTS_AS_JSON)
                return
            self._oddities.note(Oddity.JSON_NOT_OBJECT)
            self._write_value(call, "json", text, events)
            return
        try:
            value = parse(text)
        except ValueError:
            self._oddities.note(Oddity.ARGUMENT_NOT_JSON)
            value = text
        self._write_value(call, call.key, value, events)

    def end(self, events: list[Event], *, complete: bool) -> None:
        """Of the call. An open element of a complete call ends with it."""
        call = self._call
        assert call is not None
        if complete and call.in_element:
            self._oddities.note(Oddity.ARGUMENT_NOT_CLOSED)
            self.end_element(events)
        self._end_loose(call, events, usable=complete)
        self._call = None
        if not call.sent:
            return
        if complete:
            self._write("}" if call.arguments else "{}", events)
            for oddity in () if call.tool is None else check_call(CallCheck(call.tool, call.arguments)):
                self._oddities.note(oddity)
        self.complete = complete
        events.append(ToolEnd(self.sent - 1, complete))

    def _may_send(self, name: str) -> bool:
        if self.refused:
            self._oddities.note(Oddity.TOOLS_NOT_EXPECTED)
        elif not 0 < len(name) <= NAME_CHARACTERS:
            self._oddities.note(Oddity.CALL_WITHOUT_NAME)
        elif self.sent and not self._expected.choice.parallel:
            self._oddities.note(Oddity.CALLS_NOT_PARALLEL)
        else:
            return True
        return False

    def _count_tag(self, tag_ids: int) -> None:
        """A name or a key is in the tag's text; its two markers are control."""
        self._tally.control += 2
        self._tally.calls += tag_ids - 2

    def _enter_element(self, events: list[Event]) -> _Call:
        call = self._call
        assert call is not None
        if call.in_element:
            self._oddities.note(Oddity.ARGUMENT_NOT_CLOSED)
            self.end_element(events)
        self._end_loose(call, events, usable=False)
        call.has_elements = True
        return call

    def _end_loose(self, call: _Call, events: list[Event], *, usable: bool) -> None:
        """Text outside the arguments: a bare JSON object stands for them where there are none."""
        if not call.held_tokens:
            return
        text = "".join(call.parts)
        if usable and not call.has_elements and text.strip() and self._write_members(call, text, events):
            self._oddities.note(Oddity.ARGUMENTS_AS_JSON)
            self._held_text(call, used=True)
            return
        if call.reading is _Reading.LOOSE and text.strip():
            self._oddities.note(Oddity.TEXT_IN_CALL)
        self._held_text(call, used=False)

    def _held_text(self, call: _Call, *, used: bool) -> str:
        if used:
            self._tally.calls += call.held_tokens
        else:
            self._tally.dropped += call.held_tokens
        text, call.parts, call.held_tokens = "".join(call.parts), [], 0
        return text

    def _take(self, call: _Call, text: str, events: list[Event]) -> None:
        if call.reading is _Reading.STRING:
            self._write(string_inside(text), events)
        else:
            call.parts.append(text)

    def _write_members(self, call: _Call, text: str, events: list[Event]) -> bool:
        """False where the text is no JSON object."""
        try:
            members = parse(text)
            if not isinstance(members, dict):
                return False
        except ValueError:
            return False
        for key, value in members.items():
            self._write_value(call, key, value, events)
        return True

    def _write_value(self, call: _Call, key: str, value: Any, events: list[Event]) -> None:
        self._write_member(call, key, json_type(value), write_escaped(value), events)

    def _write_member(self, call: _Call, key: str, kind: str, value: str, events: list[Event]) -> None:
        """`value`: its JSON text, or how that begins."""
        if key in call.arguments:
            self._oddities.note(Oddity.ARGUMENT_REPEATED)
            return
        before = ", " if call.arguments else "{"
        call.arguments[key] = kind
        self._write(f"{before}{write_escaped(key)}: {value}", events)

    def _write(self, fragment: str, events: list[Event]) -> None:
        index = self.sent - 1
        last = events[-1] if events else None
        if isinstance(last, ToolArguments) and last.index == index and len(last.fragment) < JOIN_CHARACTERS:
            events[-1] = ToolArguments(index, last.fragment + fragment)
        else:
            events.append(ToolArguments(index, fragment))
