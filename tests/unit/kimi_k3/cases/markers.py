"""Markers that are none, or broken."""

from tests.unit.kimi_k3.answers import CLOSE, END, EOS, MEDIA_PAD, OPEN, RESERVED, SEP, C, O, Raw
from tests.unit.kimi_k3.cases.case import RESPONSE, THE_END, Case

MARKERS = [
    Case(
        "text that spells markers is text",
        ("<|close|>think<|sep|>", C("think"), O("response"), "<|end_of_msg|>[EOS]", C("response"), THE_END),
        "<|close|>think<|sep|>",
        "<|end_of_msg|>[EOS]",
    ),
    Case(
        "a tag of another name",
        ("a", O('b x="1"'), "c", C("b"), "d", C("response"), THE_END),
        content="acd",
        degraded=("tag_unknown",),
        start=RESPONSE,
    ),
    Case(
        "a tag of no name",
        ("a", OPEN, SEP, "b", CLOSE, " ", SEP, "c", C("response"), THE_END),
        content="abc",
        degraded=("tag_unknown",),
        start=RESPONSE,
    ),
    Case(
        "a bare sep",
        ("a", SEP, "b", C("response"), THE_END),
        content="ab",
        degraded=("sep_bare",),
        start=RESPONSE,
    ),
    Case(
        "a bare close before a marker",
        ("a", CLOSE, C("response"), THE_END),
        content="a",
        degraded=("tag_not_ended",),
        start=RESPONSE,
    ),
    Case(
        "tags without sep",
        ("t", CLOSE, "think", OPEN, "response", SEP, "a", CLOSE, "response", CLOSE, "message", END),
        "t",
        "a",
        degraded=("tag_not_ended",),
    ),
    Case(
        "a broken tag before a marker",
        ("a", CLOSE, "respon", C("response"), THE_END),
        content="a",
        degraded=("tag_not_ended",),
        start=RESPONSE,
    ),
    Case(
        "a marker that begins no tag",
        ("a", OPEN, b"x" * 40, " b", C("response"), THE_END),
        content="a" + "x" * 40 + " b",
        degraded=("tag_too_long",),
        start=RESPONSE,
    ),
    Case(
        "a tag that never ends",
        (C("think"), OPEN, b"call " + b"y" * 1200, O("response"), "a", C("response"), THE_END),
        content="call " + "y" * 1200 + "a",
        degraded=("tag_too_long", "text_outside"),
    ),
    Case(
        "special ids without a meaning and ids of no vocabulary",
        ("a", EOS, "b", MEDIA_PAD, RESERVED, Raw(-1), Raw(10**30), Raw(2**31), "c", C("response"), THE_END),
        content="abc",
        degraded=("special_id",),
        start=RESPONSE,
    ),
    Case(
        "special ids within a tag and a code point",
        (b"\xc3", EOS, b"\xa9", CLOSE, "res", MEDIA_PAD, "ponse", SEP, THE_END),
        content="é",
        degraded=("special_id",),
        start=RESPONSE,
    ),
    Case(
        "closers of elements that are not open",
        ("a", C("argument"), "b", C("call"), "c", C("json"), "d", C("response"), C("tools"), THE_END),
        content="abcd",
        degraded=("close_mismatched",),
        start=RESPONSE,
    ),
    Case(
        "an argument outside a call",
        ("a", O('argument key="k" type="string"'), "b", C("argument"), C("response"), THE_END),
        content="ab",
        degraded=("argument_without_call", "close_mismatched"),
        start=RESPONSE,
    ),
]
