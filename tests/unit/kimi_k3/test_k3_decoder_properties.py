"""What holds for every answer, sense or nonsense."""

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dayzero.frontend.conversation import ResponseFormat, ResponseFormatKind, Tool, ToolChoice, ToolChoiceMode
from dayzero.frontend.events import FinishReason, ToolArguments, ToolStart
from dayzero.frontend.kimi_k3.decoder import KimiK3Decoder
from dayzero.frontend.kimi_k3.oddities import Oddity
from dayzero.frontend.protocol import Channel, Expected
from tests.unit.frontend.streams import split
from tests.unit.kimi_k3.answers import END, C, O, hear, ids_of
from tests.unit.kimi_k3.toy_vocabulary import FIRST_SIGN, SIGNS, TAG_WORDS, toy_vocabulary

TOY = toy_vocabulary()
RANKS = TOY.specials.ranks
NAMES = [[n] for n in range(8)]
CALL = [3, 8, 9]
KEYED = [4, 10, 21, 11, 12]
NUMBERED = [4, 10, 22, 11, 13]
OBJECT = [4, 10, 23, 11, 14]
TAGS = st.sampled_from([*NAMES, CALL, CALL, KEYED, NUMBERED, OBJECT])
MARKER = st.builds(
    lambda first, tag: [first, *tag, TOY.specials.sep],
    st.sampled_from([TOY.specials.open, TOY.specials.close]),
    TAGS,
)
STRAY = st.one_of(
    st.integers(0, len(TAG_WORDS) + 7),
    st.sampled_from([TOY.specials.open, TOY.specials.close, TOY.specials.sep]),
    st.integers(RANKS, RANKS + 255),
    st.sampled_from([-1, -RANKS, RANKS + 256, 2**32, 2**70]),
).map(lambda token: [token])
SPECIAL = st.sampled_from([*range(RANKS, RANKS + 8), RANKS + 21]).map(lambda token: [token])
SIGN = st.just([None])
"""A text id of its own: which one is filled in by place."""
STREAM = st.lists(st.one_of(MARKER, MARKER, STRAY, SIGN, SIGN), max_size=40)
CUTS = st.lists(st.integers(0, 200), max_size=12)
EXPECTED = st.builds(
    Expected,
    tools=st.sampled_from([None, (), (Tool("f", {}),), (Tool("g", {}),)]),
    choice=st.builds(
        ToolChoice,
        mode=st.sampled_from([ToolChoiceMode.AUTO, ToolChoiceMode.NONE, ToolChoiceMode.REQUIRED]),
        parallel=st.booleans(),
    ),
    response_format=st.sampled_from([ResponseFormat(), ResponseFormat(ResponseFormatKind.JSON_OBJECT)]),
)
STOPS = st.sampled_from([(), (), (SIGNS[1],), (SIGNS[2] + SIGNS[3], "1}"), ("é", "\ufffd")])
ENDINGS = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT])


def fill(stream):
    """Its ids, each sign another."""
    ids, sign = [], FIRST_SIGN
    for piece in stream:
        for token in piece:
            ids.append(sign if token is None else token)
            sign += token is None
    return ids


def signs(text):
    return [c for c in text if c in SIGNS]


@settings(max_examples=400)
@given(
    STREAM,
    CUTS,
    st.fixed_dictionaries(
        {"start": st.sampled_from(Channel), "expected": EXPECTED, "stop": STOPS, "finish": ENDINGS}
    ),
)
def test_any_ids_are_decoded_alike_in_any_split(stream, cuts, how):
    ids = fill(stream)
    whole = hear(TOY, [ids], **how)
    assert hear(TOY, [[token] for token in ids], **how).seen == whole.seen
    assert hear(TOY, split(ids, cuts), **how).seen == whole.seen
    assert not any(stop in whole.answer.content for stop in how["stop"])


@settings(max_examples=400)
@given(
    st.lists(st.one_of(MARKER, SPECIAL, SIGN, SIGN, SIGN), max_size=40),
    st.sampled_from(Channel),
    STOPS,
    ENDINGS,
)
def test_every_text_id_is_shown_once_where_it_is_counted_or_dropped(stream, start, stop, finish):
    ids = fill(stream)
    heard = hear(TOY, [ids], start=start, stop=stop, finish=finish)
    answer, tokens = heard.answer, heard.tokens
    arguments = [signs(call.arguments) for call in answer.tool_calls]
    assert len(signs(answer.reasoning)) == tokens.reasoning
    if not (heard.stopped or stop):
        assert len(signs(answer.content)) == tokens.content
    for shown in (signs(answer.reasoning), signs(answer.content), *arguments):
        assert shown == sorted(set(shown))
    every = [*signs(answer.reasoning), *signs(answer.content), *(sign for call in arguments for sign in call)]
    assert len(every) == len(set(every))
    said = sum(token >= FIRST_SIGN for token in ids if token < RANKS)
    assert said - len(every) <= tokens.dropped + (tokens.content if stop else 0)


@settings(max_examples=300)
@given(STREAM, st.sampled_from(Channel), EXPECTED, ENDINGS)
def test_the_reason_is_tool_calls_exactly_when_the_last_call_sent_is_whole(stream, start, expected, finish):
    answer = hear(TOY, [fill(stream)], start=start, expected=expected, finish=finish).answer
    whole = bool(answer.tool_calls) and answer.tool_calls[-1].complete
    assert (answer.finished.reason is FinishReason.TOOL_CALLS) == (whole and finish is not FinishReason.ABORT)
    if expected.tools == () or expected.choice.mode is ToolChoiceMode.NONE:
        assert not answer.tool_calls
    for call in answer.tool_calls:
        if call.complete:
            assert isinstance(json.loads(call.arguments), dict)
    assert set(answer.finished.degraded) <= {str(oddity) for oddity in Oddity}


VALUES = st.one_of(
    st.text(),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ),
)
TYPES = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}


def written(key, value):
    kind = TYPES.get(type(value), "number")
    attribute = key.replace("&", "&amp;").replace('"', "&quot;")
    text = value if kind == "string" else json.dumps(value, ensure_ascii=False)
    return (O(f'argument key="{attribute}" type="{kind}"'), text, C("argument"))


@settings(max_examples=60)
@given(
    st.text(),
    st.text(),
    st.lists(st.dictionaries(st.text(max_size=8), VALUES, max_size=4), max_size=3),
    CUTS,
)
@example("<|close|>think<|sep|>", "", [{'a"&amp;': "\\\u2028\x7f"}], [])
def test_an_answer_in_order_comes_back_as_it_was_meant(small_tokenizer, reasoning, content, calls, cuts):
    """An oracle that shares no code with the decoder: values are written by the rules of the format and compared."""
    children = [
        (
            O(f'call tool="f" index="{index}"'),
            *(written(key, value) for key, value in arguments.items()),
            C("call"),
        )
        for index, arguments in enumerate(calls, start=1)
    ]
    tools = (O("tools"), *children, C("tools")) if calls else ()
    pieces = (reasoning, C("think"), O("response"), content, C("response"), *tools, C("message"), END)
    ids = ids_of(small_tokenizer, pieces)
    answer = hear(small_tokenizer.vocabulary, split(ids, cuts)).answer
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert [call.arguments for call in answer.tool_calls] == [
        json.dumps(arguments, ensure_ascii=False) for arguments in calls
    ]
    assert answer.finished.degraded == ()


def test_the_engine_is_told_to_stop_and_later_ids_are_dropped(small_tokenizer):
    decoder = KimiK3Decoder(small_tokenizer.vocabulary, start=Channel.RESPONSE, stop=("b",))
    decoder.push(ids_of(small_tokenizer, "a b"))
    before = decoder.tokens
    assert decoder.stopped
    assert decoder.push(ids_of(small_tokenizer, "c", C("response"))) == []
    assert decoder.tokens.dropped == before.dropped + len(ids_of(small_tokenizer, "c", C("response")))
    (finished,) = decoder.finish(FinishReason.LENGTH)
    assert (finished.reason, finished.stop) == (FinishReason.STOP, "b")


def test_a_call_is_announced_with_its_tag_and_its_string_comes_token_by_token(small_tokenizer):
    """A4: no silence while a file is written."""
    decoder = KimiK3Decoder(small_tokenizer.vocabulary, start=Channel.THINK)
    opener = ids_of(small_tokenizer, C("think"), O("tools"), O('call tool="write_file" index="1"'))
    assert [e for token in opener for e in decoder.push([token])] == [ToolStart(0, "write_file")]
    (key,) = [
        e
        for token in ids_of(small_tokenizer, O('argument key="text" type="string"'))
        for e in decoder.push([token])
    ]
    assert key == ToolArguments(0, '{"text": "')
    for token in ids_of(small_tokenizer, 'Line 1 said "no".\nLine 2 agreed.\n' * 50):
        (event,) = decoder.push([token])
        assert isinstance(event, ToolArguments)
        json.loads(f'"{event.fragment}"')


def test_the_fragments_of_a_cut_call_begin_a_json_object(small_tokenizer):
    """Wherever the limit falls, what was sent is the beginning of what would have been sent."""
    pieces = (
        C("think"),
        O("tools"),
        O('call tool="f" index="1"'),
        O('argument key="a" type="string"'),
        'x"\n',
        b"\xf0\x9f\x8c\x8d",
        C("argument"),
        O('argument key="b" type="object"'),
        '{"c": [1, 2]}',
        C("argument"),
        C("call"),
        C("tools"),
        C("message"),
        END,
    )
    ids = ids_of(small_tokenizer, pieces, bytewise=True)
    whole = '{"a": "x\\"\\n\U0001f30d", "b": {"c": [1, 2]}}'
    for length in range(len(ids) + 1):
        answer = hear(small_tokenizer.vocabulary, [ids[:length]], finish=FinishReason.LENGTH).answer
        for call in answer.tool_calls:
            assert whole.startswith(call.arguments)
            assert call.complete == (call.arguments == whole)
        assert (answer.finished.reason is FinishReason.TOOL_CALLS) == any(
            call.complete for call in answer.tool_calls
        )


def floods(tokenizer):
    """Much of one thing, as a model gone wrong may write it."""
    specials = tokenizer.vocabulary.specials
    word = ids_of(tokenizer, " word")
    opener = [specials.open]
    yield "openers", opener
    yield "closers", [specials.close]
    yield "seps", [specials.sep]
    yield "reserved ids", [specials.ranks + 8, *word]
    yield "openers and words", [*opener, *word]
    yield "unknown tags", [*opener, *word, specials.sep, *word]
    yield "calls", ids_of(tokenizer, O('call tool="f" index="1"'))
    yield (
        "calls with arguments",
        ids_of(tokenizer, O('call tool="f"'), O('argument key="a" type="array"'), "[", C("call")),
    )
    yield "arguments", ids_of(tokenizer, O('argument key="a" type="string"'), "x", C("argument"))
    yield "messages", ids_of(tokenizer, O("message"))
    yield "quotes in a tag", [*opener, *ids_of(tokenizer, "call" + ' "=" ' * 200)]
    yield "brackets", ids_of(tokenizer, "[")
    yield "bytes of no character", ids_of(tokenizer, b"\xf0\x9f")


@pytest.mark.parametrize("place", ["think", "response", "outside", "tools", "string", "array"])
def test_a_flood_of_anything_is_decoded_in_linear_time(small_tokenizer, place):
    before = {
        "think": (),
        "response": (C("think"), O("response")),
        "outside": (C("think"),),
        "tools": (C("think"), O("tools")),
        "string": (C("think"), O("tools"), O('call tool="f"'), O('argument key="k" type="string"')),
        "array": (C("think"), O("tools"), O('call tool="f"'), O('argument key="k" type="array"')),
    }[place]
    for name, unit in floods(small_tokenizer):
        ids = ids_of(small_tokenizer, before) + unit * (20_000 // len(unit))
        began_s = time.process_time()
        hear(small_tokenizer.vocabulary, [ids], finish=FinishReason.LENGTH)
        assert time.process_time() - began_s < 20_000 * 50e-6, name
