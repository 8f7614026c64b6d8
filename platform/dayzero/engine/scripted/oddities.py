"""How a turn is made odd: for each oddity of the decoder's list that an answer alone can have, marks to marks.

- Each is what models were seen to do, or near it; the decoder's rule for it is in `dayzero.frontend.kimi_k3.oddities`.
- Those that depend on what was asked (a call although no tool is declared, an answer that is no JSON) need no change
  of marks: a script's answer that does not fit its request has them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dayzero.engine.scripted.turn import SEP, Close, Mark, Open, Special
from dayzero.frontend.kimi_k3.oddities import Oddity

Marks = list[Mark]
_BOS = Special("[BOS]")


@dataclass(frozen=True, slots=True)
class Distortion:
    """`cut`: the answer then ends without its stop id. `needs`: elements that a turn must have for it."""

    change: Callable[[Marks], Marks]
    cut: bool = False
    needs: tuple[str, ...] = ()

    def fits(self, marks: Sequence[Mark]) -> bool:
        names = {mark.name for mark in marks if isinstance(mark, Open | Close)}
        return all(name in names for name in self.needs)


def _without(*gone: Mark) -> Callable[[Marks], Marks]:
    return lambda marks: [mark for mark in marks if mark not in gone]


def _before(at: Mark, *more: Mark) -> Callable[[Marks], Marks]:
    def change(marks: Marks) -> Marks:
        place = marks.index(at)
        return [*marks[:place], *more, *marks[place:]]

    return change


def _after(at: Mark, *more: Mark) -> Callable[[Marks], Marks]:
    def change(marks: Marks) -> Marks:
        place = marks.index(at) + 1
        return [*marks[:place], *more, *marks[place:]]

    return change


def _instead(at: Mark, *other: Mark) -> Callable[[Marks], Marks]:
    return lambda marks: [one for mark in marks for one in (other if mark == at else (mark,))]


def _first(name: str, change: Callable[[Open], Open]) -> Callable[[Marks], Marks]:
    """Of the first element of this name, another open tag."""

    def changed(marks: Marks) -> Marks:
        place = _place(marks, name)
        opened = marks[place]
        assert isinstance(opened, Open)
        return [*marks[:place], change(opened), *marks[place + 1 :]]

    return changed


def _with(key: str, value: str | None) -> Callable[[Open], Open]:
    """The tag with another value of an attribute; None leaves it out."""

    def change(opened: Open) -> Open:
        kept = tuple((name, old) for name, old in opened.attributes if name != key)
        return replace(opened, attributes=kept if value is None else (*kept, (key, value)))

    return change


def _place(marks: Marks, name: str) -> int:
    return next(at for at, mark in enumerate(marks) if isinstance(mark, Open) and mark.name == name)


def _cut_within(name: str) -> Callable[[Marks], Marks]:
    """Nothing from behind the first open tag of this name but its first text's first half."""

    def change(marks: Marks) -> Marks:
        place = _place(marks, name) + 1
        text = marks[place] if place < len(marks) else None
        half = [text[: (len(text) + 1) // 2]] if isinstance(text, str) else []
        return [*marks[:place], *half]

    return change


def _cut_within_tag(marks: Marks) -> Marks:
    return [*marks[: marks.index(Close("response"))], Open("cal", ended=False)]


def _tools_first(marks: Marks) -> Marks:
    """The response after the calls."""
    start, end = _place(marks, "response"), marks.index(Close("response")) + 1
    last = marks.index(Close("tools")) + 1
    return [*marks[:start], *marks[end:last], *marks[start:end], *marks[last:]]


def _inside_call(*marks: Mark) -> Callable[[Marks], Marks]:
    return _before(Close("call"), *marks)


def _argument(value: str, **attributes: str) -> tuple[Mark, ...]:
    return Open("argument", tuple(attributes.items())), value, Close("argument")


def _repeated(marks: Marks) -> Marks:
    place = _place(marks, "argument")
    opened = marks[place]
    return _before(Close("call"), opened, "again", Close("argument"))(marks)


def _as_number(marks: Marks) -> Marks:
    """The first argument as a number, whatever its tool declares."""
    place = _place(marks, "argument")
    end = marks.index(Close("argument"), place)
    return [*_first("argument", _with("type", "number"))(marks)[: place + 1], "7", *marks[end:]]


def _as_json(body: str) -> Callable[[Marks], Marks]:
    """The first call's arguments as one `json` element."""

    def change(marks: Marks) -> Marks:
        place = _place(marks, "call") + 1
        end = marks.index(Close("call"), place)
        return [*marks[:place], Open("json", (("type", "object"),)), body, Close("json"), *marks[end:]]

    return change


_CALL = ("call",)
_ARGUMENT = ("argument",)
_ANSWER_CLOSED = Close("response")
_AGAIN = (Open("response"), " And once more.", Close("response"))

_DISTORTIONS = {
    Oddity.THINK_NOT_CLOSED: Distortion(_without(Close("think")), needs=("think",)),
    Oddity.RESPONSE_NOT_CLOSED: Distortion(_without(_ANSWER_CLOSED)),
    Oddity.TOOLS_NOT_CLOSED: Distortion(_without(Close("tools")), needs=("tools",)),
    Oddity.MESSAGE_NOT_CLOSED: Distortion(_without(Close("message"))),
    Oddity.MESSAGE_OPENED: Distortion(
        _before(_ANSWER_CLOSED, Open("message", (("role", "assistant"),)), *_AGAIN[:2])
    ),
    Oddity.CHANNEL_REPEATED: Distortion(_after(_ANSWER_CLOSED, *_AGAIN)),
    Oddity.CHANNEL_OUT_OF_ORDER: Distortion(_tools_first, needs=("think", "tools")),
    Oddity.CLOSE_MISMATCHED: Distortion(_instead(_ANSWER_CLOSED, Close("tools"))),
    Oddity.TEXT_OUTSIDE: Distortion(_after(_ANSWER_CLOSED, "Said outside.")),
    Oddity.TEXT_AFTER_END: Distortion(_after(Close("message"), "Said too late.")),
    Oddity.TAG_UNKNOWN: Distortion(_before(_ANSWER_CLOSED, Open("thought"), Close("thought"))),
    Oddity.TAG_NOT_ENDED: Distortion(_before(_ANSWER_CLOSED, Open("note", ended=False))),
    Oddity.TAG_TOO_LONG: Distortion(_before(_ANSWER_CLOSED, Open("note" + " and so on" * 20, ended=False))),
    Oddity.TAG_CUT: Distortion(_cut_within_tag, cut=True),
    Oddity.SEP_BARE: Distortion(_before(_ANSWER_CLOSED, SEP)),
    Oddity.SPECIAL_ID: Distortion(_before(_ANSWER_CLOSED, _BOS)),
    Oddity.CALL_WITHOUT_TOOLS: Distortion(_without(Open("tools"), Close("tools")), needs=_CALL),
    Oddity.CALL_WITHOUT_NAME: Distortion(_first("call", _with("tool", None)), needs=_CALL),
    Oddity.CALL_NOT_CLOSED: Distortion(_without(Close("call")), needs=_CALL),
    Oddity.CALL_CUT: Distortion(_cut_within("argument"), cut=True, needs=_ARGUMENT),
    Oddity.CALL_INDEX_WRONG: Distortion(_first("call", _with("index", "7")), needs=_CALL),
    Oddity.TOOL_UNKNOWN: Distortion(_first("call", _with("tool", "no_such_tool")), needs=_CALL),
    Oddity.TEXT_IN_TOOLS: Distortion(_after(Open("tools"), "Let me see."), needs=("tools",)),
    Oddity.TEXT_IN_CALL: Distortion(_inside_call("That is all."), needs=_ARGUMENT),
    Oddity.ARGUMENTS_AS_JSON: Distortion(_as_json('{"city": "Paris", "days": 2}'), needs=_CALL),
    Oddity.JSON_NOT_OBJECT: Distortion(_as_json("[1, 2"), needs=_CALL),
    Oddity.ARGUMENT_WITHOUT_CALL: Distortion(
        _before(Close("tools"), *_argument("lost", key="lost", type="string")), needs=("tools",)
    ),
    Oddity.ARGUMENT_WITHOUT_KEY: Distortion(_inside_call(*_argument("lost", type="string")), needs=_CALL),
    Oddity.ARGUMENT_WITHOUT_TYPE: Distortion(_first("argument", _with("type", None)), needs=_ARGUMENT),
    Oddity.ARGUMENT_TYPE_UNKNOWN: Distortion(_first("argument", _with("type", "text")), needs=_ARGUMENT),
    Oddity.ARGUMENT_NOT_JSON: Distortion(
        _inside_call(*_argument("{not JSON", key="odd", type="object")), needs=_CALL
    ),
    Oddity.ARGUMENT_REPEATED: Distortion(_repeated, needs=_ARGUMENT),
    Oddity.ARGUMENT_NOT_CLOSED: Distortion(_without(Close("argument")), needs=_ARGUMENT),
    Oddity.ARGUMENT_UNKNOWN: Distortion(
        _inside_call(*_argument("more", key="more", type="string")), needs=_CALL
    ),
    Oddity.ARGUMENT_TYPE_WRONG: Distortion(_as_number, needs=_ARGUMENT),
}

DISTORTIONS: dict[str, Distortion] = {str(oddity): distortion for oddity, distortion in _DISTORTIONS.items()}
"""By the oddity's name."""
