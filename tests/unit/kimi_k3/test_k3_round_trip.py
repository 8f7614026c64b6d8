"""Our own output as history: an answer that is rendered decodes to itself, and what was decoded renders to its ids."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.conversation import (
    Message,
    ResponseFormat,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
)
from dayzero.frontend.events import FinishReason, fold
from dayzero.frontend.kimi_k3.frontend import KimiK3Frontend
from dayzero.frontend.protocol import Expected
from tests.unit.kimi_k3.golden import PROMPTS, conversation_of, goldens
from tests.unit.kimi_k3.prompts import USER, ids_of, of, tool

texts = st.text(max_size=12) | st.sampled_from(["<|close|>response<|sep|>", 'a "b" & c', "漢字\n", "&quot;"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
calls = st.tuples(st.sampled_from(["f", "get-weather", "_x"]), st.dictionaries(texts, values, max_size=4))
answers = st.builds(
    lambda reasoning, content, made: Message(
        Role.ASSISTANT,
        (Text(content),),
        reasoning=reasoning,
        tool_calls=tuple(
            ToolCall(f"functions.{name}:{i}", name, json.dumps(arguments))
            for i, (name, arguments) in enumerate(made)
        ),
    ),
    texts.filter(lambda text: not text.isspace()),
    texts,
    st.lists(calls, max_size=3),
)


@pytest.fixture(scope="module")
def frontend(small_tokenizer):
    return KimiK3Frontend(small_tokenizer)


@given(answer=answers, thinking=st.booleans())
def test_an_answer_decodes_to_itself_and_renders_to_its_ids(frontend, answer, thinking):
    declared = tuple(tool(name) for name in ("f", "get-weather", "_x"))
    more = {"tools": declared, "thinking": Thinking(thinking)}
    asked = frontend.render(of(USER, **more), scope="")
    history = frontend.render(of(USER, answer, **more), scope="")
    end_of_msg = frontend.vocabulary.specials.end_of_msg
    said = ids_of(history)[asked.tokens :]
    said = said[: len(said) - said[::-1].index(end_of_msg)]

    decoder = frontend.decoder(asked)
    decoded = fold([*decoder.push(said), *decoder.finish(FinishReason.STOP)])
    assert decoded.content == answer.text
    assert decoded.reasoning == (answer.reasoning if thinking else "")
    assert [(call.name, json.loads(call.arguments)) for call in decoded.tool_calls] == [
        (call.name, json.loads(call.arguments)) for call in answer.tool_calls
    ]
    assert decoded.finished is not None
    assert decoded.finished.degraded == ()

    again = Message(
        Role.ASSISTANT,
        (Text(decoded.content),),
        reasoning=decoded.reasoning,
        tool_calls=tuple(ToolCall("any", call.name, call.arguments) for call in decoded.tool_calls),
    )
    assert frontend.render(of(USER, again, **more), scope="").ids == history.ids


def test_what_golden_prompts_hold_as_history_decodes_to_what_was_asked_for(k3_tokenizer):
    """Ids that are not our own: those of an assistant's message, in the place where it would have been generated."""
    if not PROMPTS.exists():
        pytest.skip("needs the golden prompts")
    frontend, heard = KimiK3Frontend(k3_tokenizer), 0
    for golden in goldens():
        whole, ids = conversation_of(golden["request"]), golden["prompt_token_ids"]
        for at, message in enumerate(whole.messages):
            if message.role is not Role.ASSISTANT or message.name is not None:
                continue
            before = replace(
                whole,
                messages=whole.messages[:at],
                tool_choice=ToolChoice(),
                response_format=ResponseFormat(),
            )
            asked = frontend.render(before, scope="")
            assert ids[: asked.tokens] == ids_of(asked)
            end = ids.index(frontend.stop_ids[0], asked.tokens)
            decoder = frontend.decoder(replace(asked, expected=Expected()))
            answer = fold([*decoder.push(ids[asked.tokens : end + 1]), *decoder.finish(FinishReason.STOP)])
            assert answer.content == message.text
            thought = (message.reasoning or "") if whole.thinking.enabled else ""
            assert answer.reasoning == ("" if thought.isspace() else thought)
            assert [call.name for call in answer.tool_calls] == [call.name for call in message.tool_calls]
            for call, made in zip(answer.tool_calls, message.tool_calls, strict=True):
                assert json.loads(call.arguments) == arguments_of(made.arguments)
            heard += 1
    assert heard > 10


def arguments_of(text):
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError:
        return {"json": text}
