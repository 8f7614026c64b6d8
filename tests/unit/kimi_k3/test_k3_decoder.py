"""What an answer comes to where a table of cases does not say it: token counts, reasons, earlier turns, length."""

import json
from itertools import groupby

import pytest

from dayzero.frontend.conversation import (
    Conversation,
    Message,
    ResponseFormat,
    ResponseFormatKind,
    Role,
    Text,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)
from dayzero.frontend.events import FinishReason, ToolArguments, ToolEnd, ToolStart, fold
from dayzero.frontend.kimi_k3.decoder import KimiK3Decoder
from dayzero.frontend.kimi_k3.frontend import KimiK3Frontend
from dayzero.frontend.protocol import Channel, Expected, OutputDecoder, TokenCounts
from tests.unit.kimi_k3.answers import END, C, O, call, hear, ids_of

TOOLS = (Tool("f", {"name": "f"}), Tool("g", {"name": "g"}))
ENDING = (C("message"), END)


def test_it_is_an_output_decoder(small_tokenizer):
    decoder = KimiK3Decoder(small_tokenizer.vocabulary, start=Channel.THINK)
    assert isinstance(decoder, OutputDecoder)
    assert decoder.push([]) == []
    assert decoder.tokens == TokenCounts()


def test_every_id_is_counted_in_its_field(small_tokenizer):
    def count(*pieces):
        return len(ids_of(small_tokenizer, pieces))

    tags = (O('call tool="f" index="1"'), O('argument key="a" type="array"'))
    pieces = ("Let me see.", C("think"), O("response"), "So be it.", C("response"), " \n", O("tools"))
    pieces += (*tags, "[1, 2]", C("argument"), C("call"), C("tools"), *ENDING)
    assert hear(small_tokenizer.vocabulary, [ids_of(small_tokenizer, pieces)]).tokens == TokenCounts(
        reasoning=count("Let me see."),
        content=count("So be it."),
        calls=count(*tags) - 2 * len(tags) + count("[1, 2]"),
        control=2 * len(tags)
        + count(C("think"), O("response"), C("response"), O("tools"))
        + count(C("argument"), C("call"), C("tools"), *ENDING),
        dropped=count(" \n"),
    )


def test_a_tools_channel_that_nobody_asked_for_is_dropped_whole(small_tokenizer):
    tools = (O("tools"), call("f", ("a", "string", "x"), ("b", "array", "[]")), C("tools"))
    pieces = ("a", C("response"), *tools, *ENDING)
    heard = hear(
        small_tokenizer.vocabulary,
        [ids_of(small_tokenizer, pieces)],
        start=Channel.RESPONSE,
        expected=Expected(tools=()),
    )
    assert heard.tokens.dropped == len(ids_of(small_tokenizer, tools))
    assert heard.tokens.calls == 0


@pytest.mark.parametrize("mode", ToolChoiceMode)
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_b3_the_reason_says_calls_exactly_when_there_are_some(small_tokenizer, mode, parallel, calls):
    choice = ToolChoice(mode, "f" if mode is ToolChoiceMode.NAMED else None, parallel)
    made = [call("f", index=index) for index in range(1, calls + 1)]
    pieces = (C("think"), (O("tools"), *made, C("tools")) if made else (), *ENDING)
    ids = ids_of(small_tokenizer, pieces)
    for parts in ([ids], [[token] for token in ids]):
        answer = hear(small_tokenizer.vocabulary, parts, expected=Expected(tools=TOOLS, choice=choice)).answer
        sent = 0 if mode is ToolChoiceMode.NONE else min(calls, 2 if parallel else 1)
        assert len(answer.tool_calls) == sent
        assert answer.finished.reason is (FinishReason.TOOL_CALLS if sent else FinishReason.STOP)


def test_a1_earlier_turns_never_matter(small_tokenizer):
    """The prompt is full of closed `think` elements; the answer leaves its own open."""
    frontend = KimiK3Frontend(small_tokenizer)
    user = Message(Role.USER, (Text("Hi <|close|>think<|sep|>"),))
    answered = Message(Role.ASSISTANT, (Text("Hello"),), reasoning="greet")
    prompt = frontend.render(Conversation((user, answered, user), tools=TOOLS), scope="")
    decoder = frontend.decoder(prompt)
    ids = ids_of(small_tokenizer, "need", O("tools"), call("f", ("a", "string", "b")), C("tools"), *ENDING)
    answer = fold([*decoder.push(ids), *decoder.finish(FinishReason.STOP)])
    assert answer.reasoning == "need"
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [("f", '{"a": "b"}')]
    assert answer.finished.degraded == ("think_not_closed",)


def test_a5_long_arguments_and_two_calls_in_one_delta(small_tokenizer):
    """The second call begins, and ends, in the delta that ends the first."""
    text = 'Line "one"\n' * 6_000
    numbers = list(range(20_000))
    first = call("f", ("text", "string", text))
    second = call("g", ("numbers", "array", json.dumps(numbers)), index=2)
    ids = ids_of(
        small_tokenizer, C("think"), O("response"), "Before.", C("response"), O("tools"), first, second
    )
    for size in (len(ids), 4096, 37):
        parts = [ids[at : at + size] for at in range(0, len(ids), size)]
        heard = hear(small_tokenizer.vocabulary, parts)
        assert heard.answer.content == "Before."
        assert [json.loads(c.arguments) for c in heard.answer.tool_calls] == [
            {"text": text},
            {"numbers": numbers},
        ]
    cut = ids.index(small_tokenizer.vocabulary.specials.close, len(ids_of(small_tokenizer, first)) // 2)
    decoder = KimiK3Decoder(small_tokenizer.vocabulary, start=Channel.THINK)
    decoder.push(ids[:cut])
    kinds = [kind for kind, _ in groupby(decoder.push(ids[cut:]), type)]
    assert kinds == [ToolArguments, ToolEnd, ToolStart, ToolArguments, ToolEnd]


def test_the_same_ids_always_give_the_same_answer_and_decoders_share_nothing(small_tokenizer):
    ids = ids_of(small_tokenizer, "a", O("tools"), call("f", ("k", "string", "v")), C("tools"), *ENDING)
    decoders = [KimiK3Decoder(small_tokenizer.vocabulary, start=Channel.THINK) for _ in range(2)]
    events = [[], []]
    for token in ids:
        for decoder, heard in zip(decoders, events, strict=True):
            heard.extend(decoder.push([token]))
    assert events[0] == events[1]


def test_a_prefix_that_the_client_wrote_is_no_part_of_the_json_that_is_checked(small_tokenizer):
    """With `partial` the answer is the rest of a document: it cannot be told whether the whole is JSON."""
    frontend = KimiK3Frontend(small_tokenizer)
    prompt = frontend.render(
        Conversation(
            (Message(Role.USER, (Text("?"),)), Message(Role.ASSISTANT, (Text('{"a":'),), partial=True)),
            response_format=ResponseFormat(ResponseFormatKind.JSON_OBJECT),
        ),
        scope="",
    )
    decoder = frontend.decoder(prompt)
    decoder.push(ids_of(small_tokenizer, " 1}", C("response"), *ENDING))
    (*_, finished) = decoder.finish(FinishReason.STOP)
    assert finished.degraded == ()


@pytest.mark.parametrize("separators", [150_000, 150_001])
def test_a_value_that_takes_too_long_to_read_is_a_string(small_tokenizer, separators):
    value = "[" + "0, " * (separators - 1) + "0]"
    tools = (O("tools"), call("f", ("a", "array", value)), C("tools"))
    ids = ids_of(small_tokenizer, (C("think"), *tools, *ENDING))
    answer = hear(small_tokenizer.vocabulary, [ids], expected=Expected(tools=TOOLS)).answer
    (made,) = answer.tool_calls
    read = separators == 150_000
    assert json.loads(made.arguments) == {"a": json.loads(value) if read else value}
    assert answer.finished.degraded == (() if read else ("argument_not_json",))


def test_a_json_element_that_takes_too_long_to_read_is_a_string(small_tokenizer):
    body = '{"b": [' + "0, " * 150_000 + "0]}"
    inside = (O('call tool="f" index="1"'), O("json"), body, C("json"), C("call"))
    ids = ids_of(small_tokenizer, (C("think"), O("tools"), *inside, C("tools"), *ENDING))
    answer = hear(small_tokenizer.vocabulary, [ids], expected=Expected(tools=TOOLS)).answer
    assert json.loads(answer.tool_calls[0].arguments) == {"json": body}
    assert answer.finished.degraded == ("json_not_object",)
