"""What an answer says and what it comes to, and words to write both."""

from dataclasses import dataclass, field

from dayzero.frontend.conversation import ResponseFormat, Tool, ToolChoice
from dayzero.frontend.events import FinishReason
from dayzero.frontend.protocol import Channel, Expected
from tests.unit.kimi_k3.answers import END, C, O, call

STOP, LENGTH, CALLS = FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS
THINK, RESPONSE = Channel.THINK, Channel.RESPONSE
THE_END = (C("message"), END)
BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "seat": {"type": "string"},
                "row": {"type": "integer"},
                "price": {"type": ["number", "null"]},
            },
            "required": ["seat"],
            "additionalProperties": False,
        },
    },
}
TOOLS = (*(Tool(name, {"name": name}) for name in ("get_weather", "f", "g")), Tool("book", BOOK))
PARIS = call("get_weather", ("city", "string", "Paris"))
PARIS_JSON = '{"city": "Paris"}'


@dataclass(frozen=True)
class Case:
    """`calls`: (name, arguments) or, of one that is not complete, (name, arguments, False)."""

    name: str
    pieces: tuple
    reasoning: str = ""
    content: str = ""
    calls: tuple = ()
    reason: FinishReason = STOP
    degraded: tuple = ()
    start: Channel = THINK
    finish: FinishReason = STOP
    stop: tuple = ()
    expected: Expected = field(default_factory=lambda: Expected(tools=TOOLS))


def choosing(mode, **fields):
    return Expected(tools=TOOLS, choice=ToolChoice(mode=mode, **fields))


def in_format(kind):
    return Expected(tools=(), response_format=ResponseFormat(kind))


def in_call(*pieces, index=1):
    return (O(f'call tool="f" index="{index}"'), *pieces, C("call"))


def argument(key, kind, value):
    return (O(f'argument key="{key}" type="{kind}"'), value, C("argument"))


def booking(name, *arguments, degraded=()):
    """A call of the one tool here that says what its arguments are."""
    values = [f'"{value}"' if kind == "string" else value for _, kind, value in arguments]
    written = ", ".join(f'"{key}": {value}' for (key, _, _), value in zip(arguments, values, strict=True))
    return Case(
        name,
        (C("think"), O("tools"), call("book", *arguments), C("tools"), THE_END),
        calls=(("book", f"{{{written}}}"),),
        reason=CALLS,
        degraded=degraded,
    )


def one_call(name, pieces, arguments, *degraded):
    """A call of f that holds these pieces, in an answer that is otherwise in order."""
    return Case(
        name,
        ("t", C("think"), O("tools"), in_call(*pieces), C("tools"), THE_END),
        reasoning="t",
        calls=(("f", arguments),),
        reason=CALLS,
        degraded=degraded,
    )
