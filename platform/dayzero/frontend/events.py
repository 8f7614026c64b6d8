"""The one stream of events between a decoder and every dialect, its legal order, and its fold.

- Order: text and reasoning in any alternation; each call is ToolStart, ToolArguments*, ToolEnd, and calls do
  not interleave; exactly one Finish, last.
- No event is empty: a text event has text.
- The buffered answer is `fold` of the streamed events: there is no second parser.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """`index` counts the calls of this answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A fragment; the fragments of one call, joined, are one JSON document."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """`complete` is False for a call that the limit cut off."""

    index: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """`degraded` names each oddity of the output that was mended by a written rule."""

    reason: FinishReason
    stop: str | None = None
    degraded: tuple[str, ...] = ()


Event = Reasoning | Content | ToolStart | ToolArguments | ToolEnd | Finished


class EventOrderError(RuntimeError):
    """A decoder broke the order: our fault, never the model's."""


@dataclass(slots=True)
class OrderCheck:
    """Accepts one stream's events in their legal order; raises EventOrderError at the first that is not."""

    _open_call: int | None = None
    _calls: int = 0
    _finished: bool = False

    def accept(self, event: Event) -> None:
        if self._finished:
            raise EventOrderError(f"{type(event).__name__} after Finished")
        match event:
            case Reasoning(text=text) | Content(text=text):
                self._no_open_call(event)
                if not text:
                    raise EventOrderError(f"empty {type(event).__name__}")
            case ToolStart(index=index):
                self._no_open_call(event)
                if index != self._calls:
                    raise EventOrderError(f"call {index} started, {self._calls} was next")
                self._open_call = index
                self._calls += 1
            case ToolArguments(index=index) | ToolEnd(index=index):
                if index != self._open_call:
                    raise EventOrderError(
                        f"{type(event).__name__} of call {index}, open is {self._open_call}"
                    )
                if isinstance(event, ToolEnd):
                    self._open_call = None
            case Finished():
                self._no_open_call(event)
                self._finished = True

    def _no_open_call(self, event: Event) -> None:
        if self._open_call is not None:
            raise EventOrderError(f"{type(event).__name__} inside call {self._open_call}")


@dataclass(slots=True)
class FoldedCall:
    name: str
    arguments: str = ""
    complete: bool = True


@dataclass(slots=True)
class Answer:
    """A whole answer: the fold of its events."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[FoldedCall] = field(default_factory=list)
    finished: Finished | None = None


def fold(events: Iterable[Event]) -> Answer:
    answer = Answer()
    reasoning: list[str] = []
    content: list[str] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case Reasoning(text=text):
                reasoning.append(text)
            case Content(text=text):
                content.append(text)
            case ToolStart(name=name):
                answer.tool_calls.append(FoldedCall(name))
                arguments.append([])
            case ToolArguments(index=index, fragment=fragment):
                arguments[index].append(fragment)
            case ToolEnd(index=index, complete=complete):
                answer.tool_calls[index].complete = complete
            case Finished():
                answer.finished = event
    answer.reasoning, answer.content = "".join(reasoning), "".join(content)
    for call, fragments in zip(answer.tool_calls, arguments, strict=True):
        call.arguments = "".join(fragments)
    return answer
