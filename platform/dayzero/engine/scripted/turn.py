"""A turn of Kimi K3 as it is generated: marks, in the order in which the model says them (KIMI_K3.md section 4).

- It begins in the channel that the prompt left open and ends with the close of `message`; the stop id is not of it.
- Each text between two control ids is encoded on its own, an attribute as four texts, as in a prompt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dayzero.frontend.kimi_k3.arguments import Argument, Unparsed, arguments_of
from dayzero.frontend.kimi_k3.segments import Segment, escape
from dayzero.frontend.kimi_k3.specials import Specials
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.protocol import Channel

Attributes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Open:
    """An element's open tag. `ended` False leaves out its `<|sep|>`."""

    name: str
    attributes: Attributes = ()
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Close:
    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special id by its name."""

    name: str


SEP = Special("<|sep|>")
Mark = Open | Close | Special | str
"""A `str` is text."""


@dataclass(frozen=True, slots=True)
class SaidCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer says. `reasoning` is left out where the prompt did not open `think`."""

    reasoning: str
    content: str
    calls: tuple[SaidCall, ...] = ()


def turn(said: Said, start: Channel) -> list[Mark]:
    marks: list[Mark] = []
    if start is Channel.THINK:
        marks += [*_text(said.reasoning), Close("think"), Open("response")]
    marks += [*_text(said.content), Close("response")]
    if said.calls:
        marks.append(Open("tools"))
        for index, call in enumerate(said.calls, 1):
            marks += _call(call, index)
        marks.append(Close("tools"))
    return [*marks, Close("message")]


def _call(call: SaidCall, index: int) -> list[Mark]:
    arguments = arguments_of(json.dumps(call.arguments, ensure_ascii=False), call.name)
    assert not isinstance(arguments, Unparsed), "written as JSON a moment ago"
    inside = [mark for argument in arguments for mark in _argument(argument)]
    return [Open("call", (("tool", call.name), ("index", str(index)))), *inside, Close("call")]


def _argument(argument: Argument) -> list[Mark]:
    attributes = (("key", argument.key), ("type", argument.type))
    return [Open("argument", attributes), *_text(argument.text), Close("argument")]


def _text(text: str) -> list[Mark]:
    return [text] if text else []


def segments(marks: Sequence[Mark], specials: Specials) -> list[Segment]:
    """Control ids, and the texts between them."""
    made: list[Segment] = []
    for mark in marks:
        match mark:
            case str():
                made.append(mark)
            case Special(name=name):
                made.append(specials.id_of(name))
            case Close(name=name):
                made += [specials.close, name, specials.sep]
            case Open(name=name, attributes=attributes, ended=ended):
                made += [specials.open, name]
                for key, value in attributes:
                    made += [f" {key}", '="', escape(value), '"']
                if ended:
                    made.append(specials.sep)
    return [one for one in made if one != ""]


def ids_of(marks: Sequence[Mark], specials: Specials, tokenizer: K3Tokenizer) -> bytes:
    """As uint32 buffer."""
    made = segments(marks, specials)
    texts = iter(tokenizer.encode([one for one in made if isinstance(one, str)]))
    return b"".join(next(texts) if isinstance(one, str) else one.to_bytes(4, "little") for one in made)
