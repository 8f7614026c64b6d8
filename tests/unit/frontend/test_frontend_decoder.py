"""The output decoder: legal order, streamed equals buffered, nothing half shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.frontend.chat_template import ChatTemplateFrontend
from dayzero.frontend.chat_template.decoder import ReasoningFormat, TextDecoder
from dayzero.frontend.conversation import Conversation, Message, Role, Text
from dayzero.frontend.detokenizer import TokenTable
from dayzero.frontend.errors import FrontendError
from dayzero.frontend.events import Content, Finished, FinishReason, OrderCheck, Reasoning, fold
from dayzero.frontend.protocol import Channel, OutputDecoder
from tests.unit.frontend.streams import split

# Ids 0-255 are bytes, then three special tokens and one that is shown.
OPEN, CLOSE, END, SHOWN = 256, 257, 258, 259
_BYTES = tuple(bytes([b]) for b in range(256))
TABLE = TokenTable(
    (*_BYTES, b"<think>", b"</think>", b"", b"<shown>"),
    (*_BYTES, b"<think>", b"</think>", b"<end>", b"<shown>"),
)
BY_ID = ReasoningFormat("<think>", "</think>", OPEN, CLOSE)
BY_TEXT = ReasoningFormat("<think>", "</think>")


def decoder(**kwargs):
    return TextDecoder(TABLE, **kwargs)


def answer(parts, reason=FinishReason.STOP, **kwargs):
    one = decoder(**kwargs)
    events = [event for part in parts for event in one.push(part)]
    events += one.finish(reason)
    check = OrderCheck()
    for event in events:
        check.accept(event)
    return fold(events)


def ids(*parts):
    return [i for part in parts for i in ([part] if isinstance(part, int) else part.encode())]


PIECES = st.one_of(
    st.sampled_from(
        ["a", "b", " ", "\n", "😀", "é", "<think>", "</think>", "<th", "ink>", "</", "STOP", "ST", "stop"]
    ).map(str.encode),
    st.sampled_from([[OPEN], [CLOSE], [END], [SHOWN], [0xF0, 0x9F], [0xC3], [999_999], [0xFF]]),
)


@settings(max_examples=400)
@given(
    pieces=st.lists(PIECES, max_size=10),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    stop=st.lists(st.sampled_from(["STOP", "b", "\n\n", "TO", "é</", "\ufffd"]), max_size=3),
    form=st.tuples(st.sampled_from(Channel), st.sampled_from([None, BY_ID, BY_TEXT])),
    reason=st.sampled_from(FinishReason),
)
def test_streamed_equals_buffered_at_every_split(pieces, cuts, stop, form, reason):
    start, reasoning = form
    whole = [i for piece in pieces for i in piece]
    options = {"start": start, "stop": stop, "reasoning": reasoning, "hidden_ids": frozenset({END})}
    buffered = answer([whole], reason, **options)
    assert answer(split(whole, cuts), reason, **options) == buffered
    assert answer([[i] for i in whole], reason, **options) == buffered
    for string in stop:
        assert string not in buffered.content
    if buffered.finished.stop is not None:
        assert buffered.finished.reason is FinishReason.STOP
    else:
        assert buffered.finished.reason is reason
    if not stop and reasoning is None:
        shown = TABLE.bytes_of([i for i in whole if i != END])
        assert buffered.content == shown.decode("utf-8", "replace")


def test_it_keeps_the_protocol():
    assert isinstance(decoder(), OutputDecoder)


def test_special_ids_and_stop_ids_are_not_shown_and_other_added_tokens_are():
    assert answer([ids("a", END, SHOWN, "b")]).content == "a<shown>b"
    assert answer([ids("a", SHOWN)], hidden_ids=frozenset({SHOWN})).content == "a"


def test_a_stop_string_ends_the_answer_before_it_wherever_it_is_cut():
    one = decoder(stop=["STOP"])
    assert one.push(ids("one ST")) == [Content("one ")]
    assert not one.stopped
    assert one.push(ids("OP two")) == []
    assert one.stopped
    assert one.push(ids("three")) == []
    assert one.finish(FinishReason.LENGTH) == [Finished(FinishReason.STOP, stop="STOP")]


def test_a_held_prefix_is_shown_at_the_end():
    one = decoder(stop=["STOP"])
    assert one.push(ids("so ST")) == [Content("so ")]
    assert one.finish(FinishReason.LENGTH) == [Content("ST"), Finished(FinishReason.LENGTH)]


def test_an_incomplete_code_point_is_shown_as_one_replacement_at_the_end():
    one = decoder()
    assert one.push([0xF0, 0x9F, 0x98]) == []
    assert one.finish(FinishReason.LENGTH) == [Content("\ufffd"), Finished(FinishReason.LENGTH)]


def test_nothing_generated_is_nothing_shown():
    assert decoder(stop=["x"], reasoning=BY_TEXT).finish(FinishReason.ABORT) == [Finished(FinishReason.ABORT)]


@pytest.mark.parametrize("reasoning", [BY_ID, BY_TEXT], ids=["by id", "by text"])
def test_reasoning_is_what_lies_between_the_markers(reasoning):
    opener, closer = (OPEN, CLOSE) if reasoning is BY_ID else ("<think>", "</think>")
    opened_by_prompt = answer([ids("why", closer, "so")], start=Channel.THINK, reasoning=reasoning)
    opened_by_model = answer([ids("\n", opener, "why", closer, "so")], reasoning=reasoning)
    for one in (opened_by_prompt, opened_by_model):
        assert (one.reasoning, one.content.lstrip("\n"), one.finished.degraded) == ("why", "so", ())
    cut_off = answer([ids("why not")], FinishReason.LENGTH, start=Channel.THINK, reasoning=reasoning)
    assert (cut_off.reasoning, cut_off.content) == ("why not", "")


def test_stop_strings_do_not_end_reasoning():
    one = answer([ids("a STOP b", CLOSE, "c STOP d")], start=Channel.THINK, reasoning=BY_ID, stop=["STOP"])
    assert (one.reasoning, one.content, one.finished.stop) == ("a STOP b", "c ", "STOP")


def test_a_marker_that_the_model_only_spells_is_text_where_it_has_an_id():
    one = answer([ids("say </think> now", CLOSE, "or <think>")], start=Channel.THINK, reasoning=BY_ID)
    assert (one.reasoning, one.content) == ("say </think> now", "or <think>")


def test_a_spelled_opener_counts_at_the_beginning_only():
    assert answer([ids("use <think> tags")], reasoning=BY_TEXT).content == "use <think> tags"
    assert answer([ids("  <thin")], reasoning=BY_TEXT).content == "  <thin"


def test_a_marker_ends_a_code_point_and_a_held_prefix():
    one = answer([[*ids("ST"), 0xC3, OPEN, 0xA9, CLOSE, *ids("OP")]], reasoning=BY_ID, stop=["STOP"])
    assert (one.content, one.reasoning, one.finished.stop) == ("ST\ufffdOP", "\ufffd", None)


def test_a_repeated_marker_is_hidden_and_noted():
    one = answer([ids("a", CLOSE, "b", CLOSE, "c")], start=Channel.THINK, reasoning=BY_ID)
    assert (one.reasoning, one.content) == ("a", "bc")
    assert one.finished.degraded == ("response_marker_repeated",)


def test_without_a_format_markers_are_text():
    assert answer([ids("<think>a</think>b")], start=Channel.THINK).content == "<think>a</think>b"


def prompt_of(frontend: ChatTemplateFrontend):
    return frontend.render(Conversation((Message(Role.USER, (Text("q"),)),)), scope="")


def test_a_prompts_decoder_starts_where_the_prompt_ends(frontends):
    frontend = frontends["qwen"]
    prompt = prompt_of(frontend)
    close = next(c.id for c in frontend._vocabulary.controls if c.content == "</think>")
    text = [part.tolist() for part in frontend._encoder.encode(["why", "\n\nso"])]
    one = frontend.decoder(prompt)
    events = one.push([*text[0], close, *text[1], *prompt.stop_ids]) + one.finish(FinishReason.STOP)
    assert events == [Reasoning("why"), Content("\n\nso"), Finished(FinishReason.STOP)]


@pytest.mark.parametrize("stop", [["a", ""], ["a", "\ud83d"]])
def test_a_stop_string_that_is_no_text_is_a_400(frontends, stop):
    with pytest.raises(FrontendError) as e:
        frontends["chatml"].decoder(prompt_of(frontends["chatml"]), stop=stop)
    assert e.value.param == "stop[1]"


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), size=st.integers(1, 5))
def test_decoding_what_was_encoded_gives_the_text(frontends, text, size):
    frontend = frontends["chatml"]
    (encoded,) = frontend._encoder.encode([text])
    one = frontend.decoder(prompt_of(frontend))
    parts = encoded.tolist()
    events = [event for i in range(0, len(parts), size) for event in one.push(parts[i : i + size])]
    assert fold([*events, *one.finish(FinishReason.STOP)]).content == text
