"""Where vLLM 0.32's own Kimi K3 parsers come to something else, case by case; checked against them where they are installed.

Three ways: buffered, streamed token by token, streamed as one delta.
"""

from dataclasses import dataclass

from tests.unit.kimi_k3 import cases

CASES = {case.name: case for case in cases.CASES}
BUFFERED, STREAMED, AT_ONCE = "buffered", "streamed", "at once"
ALL = (BUFFERED, STREAMED, AT_ONCE)


@dataclass(frozen=True)
class Difference:
    """`ways`: in which of them. `outcome`: what a client sees."""

    outcome: str
    ways: tuple[str, ...] = ALL


LEAK = Difference("the marker's text is in the content")
NO_CALL = Difference("the call is lost")
NO_ARGUMENT = Difference("the argument is lost")
NO_JSON = Difference("the arguments are lost: `{}`")
CUT_CALL = Difference("nothing of the cut call is sent")

DIFFERENCES = {
    # Channels
    "A1: think left by opening tools": Difference("the call is lost, its markup is in the reasoning"),
    "A1: think left by opening response": Difference(
        "buffered: the reasoning is lost; streamed: the answer and its markup are in the reasoning"
    ),
    "A2: message closed and response not": Difference(
        "`<|close|>message<|sep|>` is in the content", (STREAMED, AT_ONCE)
    ),
    "A2: the close of message cut off": LEAK,
    "A2: cut off right behind the marker": Difference("`<|close|>` is in the content", (BUFFERED,)),
    "A3: spaces inside a marker": Difference("half a marker is in the content", (STREAMED,)),
    "A3: white space of every kind inside markers": Difference(
        "markers are in the reasoning, reasoning is sent twice, content holds its wrapper",
        (STREAMED, AT_ONCE),
    ),
    "white space between elements": Difference("the line feed is content", (STREAMED,)),
    "response never opened": Difference("the white space before it is content"),
    "text behind the response and behind the tools": Difference("that text is lost"),
    "half a code point outside": Difference("it is lost", (BUFFERED, AT_ONCE)),
    "channels opened again by the model": LEAK,
    "message opened again by the model": Difference("its markup is in the reasoning", (STREAMED,)),
    "think with thinking off": Difference(
        "the reasoning is lost; token by token its markup and text are content"
    ),
    "think closed with thinking off": Difference("the marker's text is in the content", (STREAMED,)),
    "text, markers and another message behind the close of message": Difference(
        "all of it is content", (BUFFERED,)
    ),
    # Markers
    "text that spells markers is text": Difference(
        "it ends the reasoning, which is lost; token by token it is content"
    ),
    "a tag of another name": LEAK,
    "a tag of no name": LEAK,
    "a bare sep": LEAK,
    "a bare close before a marker": LEAK,
    "tags without sep": LEAK,
    "a broken tag before a marker": LEAK,
    "a marker that begins no tag": LEAK,
    "a tag that never ends": Difference("its text is lost; token by token its marker is content"),
    "special ids without a meaning and ids of no vocabulary": Difference("their names are in the content"),
    "special ids within a tag and a code point": Difference("their names and the marker are in the content"),
    "closers of elements that are not open": LEAK,
    "an argument outside a call": LEAK,
    # Calls
    "the longest name, and a longer one": Difference("the call with the longer name is sent"),
    "a call without tools": Difference("the call is lost, its markup is the content"),
    "calls without tools, straight from think, and text behind": Difference(
        "the calls are lost, their markup is in the reasoning"
    ),
    "calls that the next marker ends": Difference("both calls are lost"),
    "a call that message ends": NO_CALL,
    "a call that the stop id ends between arguments": NO_CALL,
    "a call that the stop id ends within an argument": CUT_CALL,
    "a call that response ends": NO_CALL,
    "arguments and calls opened within an argument": Difference(
        "one call without its arguments, the other lost"
    ),
    "cut off within a string": CUT_CALL,
    "cut off within an array": CUT_CALL,
    "cut off before the first argument": CUT_CALL,
    "attributes in another order, with white space and entities": NO_CALL,
    "a quote that is not closed": NO_CALL,
    "nobody knows the tools": Difference("no tools in the request, so no calls"),
    "tools opened twice": Difference("the second element's call is lost", (BUFFERED,)),
    "tools opened within a call": Difference("the second call is lost"),
    # What was asked for
    "no calls wanted, yet one without tools": LEAK,
    "two calls where one is allowed": Difference("both are sent (its serving layer then sends one)"),
    # Arguments
    "A5: text that spells closers": Difference("the value ends there, the rest is lost"),
    "not a number": Difference("`NaN` is sent, which is no JSON"),
    "beyond numbers": Difference("`-Infinity` is sent, which is no JSON"),
    "too many digits": Difference("buffered: the markup is the content; streamed: it raises"),
    "deeper than a history may be": Difference("the array is sent"),
    "deeper than Python reads": Difference("buffered: the markup is the content; streamed: it raises"),
    "B1: keys twice": Difference("the last value is sent (it streams none, so it can choose)"),
    "no key": Difference("it is sent with an empty key"),
    "json instead of arguments": NO_JSON,
    "json behind arguments": NO_ARGUMENT,
    "json that is none": NO_JSON,
    "json that is no object": NO_JSON,
    "json without its close": NO_JSON,
    "bare json": NO_JSON,
    "an argument without its close": NO_ARGUMENT,
    "closers that do not fit": NO_ARGUMENT,
    "unknown tags within a value": Difference("their markup is in the value"),
}


def table():
    """For docs/kimi-k3-output.md."""
    rows = [
        f"| {name} | {outcome(CASES[name])} | {difference.outcome} | {', '.join(difference.ways)} |"
        for name, difference in DIFFERENCES.items()
    ]
    return "\n".join(["| answer | ours names | vLLM 0.32 | where |", "|---|---|---|---|", *rows])


def outcome(case):
    return ", ".join(f"`{name}`" for name in case.degraded) or "nothing: no oddity"
