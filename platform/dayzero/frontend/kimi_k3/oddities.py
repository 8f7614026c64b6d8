"""Every way in which an answer of Kimi K3 may be odd, and the rule by which it is mended.

- The one list: `Finished.degraded` holds these names, metrics are labelled with them, docs/kimi-k3-output.md shows them.
- A rule is deterministic: it depends on the ids alone, never on how they were split.
"""

from enum import StrEnum
from typing import Self


class Oddity(StrEnum):
    """A name and, as `rule`, what becomes of the answer."""

    rule: str

    def __new__(cls, name: str, rule: str) -> Self:
        oddity = str.__new__(cls, name)
        oddity._value_ = name
        oddity.rule = rule
        return oddity

    # Channels
    THINK_NOT_CLOSED = (
        "think_not_closed",
        "Another element is opened, or the turn ends, while `think` is open: that ends `think`.",
    )
    RESPONSE_NOT_CLOSED = (
        "response_not_closed",
        "Another element is opened, or `message` or the turn ends, while `response` is open: that ends `response`.",
    )
    TOOLS_NOT_CLOSED = (
        "tools_not_closed",
        "A channel is opened, or `message` or the turn ends, while `tools` is open: that ends `tools`.",
    )
    MESSAGE_NOT_CLOSED = ("message_not_closed", "The turn ends without the close of `message`: it is over.")
    MESSAGE_OPENED = (
        "message_opened",
        "`message` is opened within the turn: that ends the open channel and is otherwise ignored.",
    )
    CHANNEL_REPEATED = (
        "channel_repeated",
        "A channel is opened for a second time: its text or calls are joined to the earlier ones.",
    )
    CHANNEL_OUT_OF_ORDER = (
        "channel_out_of_order",
        "`think` after the answer began or with thinking off, or `response` after `tools`: taken as it is named.",
    )
    CLOSE_MISMATCHED = (
        "close_mismatched",
        "An element is closed that is not open: the close of a channel ends whichever is open, any other is dropped.",
    )
    TEXT_OUTSIDE = (
        "text_outside",
        "Text outside every channel is content, from its first character that is not white space; white space alone is dropped.",
    )
    TEXT_AFTER_END = ("text_after_end", "What follows the end of `message` or of the turn is dropped.")

    # Markers
    TAG_UNKNOWN = (
        "tag_unknown",
        "A tag of another name, or of none, is dropped; the text goes on where it was.",
    )
    TAG_NOT_ENDED = (
        "tag_not_ended",
        "Another marker comes before the tag's `<|sep|>`: taken as a tag if it reads as one, else dropped.",
    )
    TAG_TOO_LONG = (
        "tag_too_long",
        "No `<|sep|>` within 32 tokens of what is no known tag, or 1,024 of any: its text is text, its marker dropped.",
    )
    TAG_CUT = ("tag_cut", "The answer is cut off within a tag: the tag is dropped.")
    SEP_BARE = ("sep_bare", "A `<|sep|>` outside a tag is dropped.")
    SPECIAL_ID = (
        "special_id",
        "A special id without a meaning in an answer, or an id outside the vocabulary, is dropped.",
    )

    # Calls
    TOOLS_NOT_EXPECTED = (
        "tools_not_expected",
        "A call although none may be made (no tools, or tool_choice none): no call is sent, its ids are dropped.",
    )
    CALLS_NOT_PARALLEL = (
        "calls_not_parallel",
        "A further call although parallel calls are off: not sent, its ids are dropped.",
    )
    CALL_WITHOUT_TOOLS = ("call_without_tools", "A call outside `tools` is a call like any other.")
    CALL_WITHOUT_NAME = (
        "call_without_name",
        "A call without a tool's name, or with one of more than 256 characters, is not sent, its ids are dropped.",
    )
    CALL_NOT_CLOSED = (
        "call_not_closed",
        "Another marker ends the call: it is complete, unless the turn ends within one of its arguments.",
    )
    CALL_CUT = (
        "call_cut",
        "The answer is cut off within a call: what was sent of its arguments stands, the call is not complete.",
    )
    CALL_INDEX_WRONG = (
        "call_index_wrong",
        "A call's index is missing or is not its place in the answer, from 1: its place counts.",
    )
    CALL_MISSING = ("call_missing", "A call was required and none was made: the answer is sent as it is.")
    TOOL_UNKNOWN = ("tool_unknown", "A call of a tool that was not declared is sent.")
    TOOL_NOT_CHOSEN = ("tool_not_chosen", "A call of another tool than the one that was chosen is sent.")
    TEXT_IN_TOOLS = ("text_in_tools", "Text in `tools` outside a call is dropped.")
    TEXT_IN_CALL = ("text_in_call", "Text in a call outside its arguments is dropped.")

    # Arguments
    ARGUMENTS_AS_JSON = (
        "arguments_as_json",
        "A `json` element, or the bare text of a call without arguments, that holds a JSON object: its members are the arguments.",
    )
    JSON_NOT_OBJECT = (
        "json_not_object",
        "A `json` element that holds no JSON object, or one too large to read: its text becomes a string argument named `json`.",
    )
    ARGUMENT_WITHOUT_CALL = (
        "argument_without_call",
        "An `argument` or `json` element outside a call is dropped.",
    )
    ARGUMENT_WITHOUT_KEY = ("argument_without_key", "An argument without a key is dropped.")
    ARGUMENT_WITHOUT_TYPE = ("argument_without_type", "An argument without a type is a string.")
    ARGUMENT_TYPE_UNKNOWN = (
        "argument_type_unknown",
        "An argument of an unknown type is its JSON value where it has one, else a string.",
    )
    ARGUMENT_NOT_JSON = (
        "argument_not_json",
        "A value that is no JSON although its type says so (or has no equal in JSON, or is nested deeper than 63 levels, or has more than 150,000 separators or 200,000 digits of long integers) is a string.",
    )
    ARGUMENT_REPEATED = ("argument_repeated", "A key that the call already has is dropped, with its value.")
    ARGUMENT_NOT_CLOSED = ("argument_not_closed", "Another marker ends the argument: its value ends there.")
    ARGUMENT_MISSING = ("argument_missing", "A call lacks an argument that its tool requires: sent as it is.")
    ARGUMENT_UNKNOWN = (
        "argument_unknown",
        "A call has an argument that its tool does not know and does not allow: sent as it is.",
    )
    ARGUMENT_TYPE_WRONG = (
        "argument_type_wrong",
        "An argument's value is not of the type that its tool declares: sent as it is.",
    )

    # The finished answer
    CONTENT_NOT_JSON = (
        "content_not_json",
        "JSON was asked for and the content is none, or is no object where that was asked for: sent as it is. One too large to read is not checked.",
    )


class Oddities:
    """Those of one answer, each once, in the order in which they were first met."""

    __slots__ = ("_met",)

    def __init__(self) -> None:
        self._met: dict[Oddity, None] = {}

    def note(self, oddity: Oddity) -> None:
        self._met[oddity] = None

    def names(self) -> tuple[str, ...]:
        return tuple(str(oddity) for oddity in self._met)


def table() -> str:
    """For docs/kimi-k3-output.md."""
    rows = [f"| `{oddity}` | {oddity.rule} |" for oddity in Oddity]
    return "\n".join(["| name | rule |", "|---|---|", *rows])
