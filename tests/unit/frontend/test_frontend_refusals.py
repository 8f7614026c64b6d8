"""What a model cannot be told is refused by field; what can be mended in a request is mended by a written rule."""

import pytest

from dayzero.frontend.conversation import (
    Conversation,
    Image,
    Message,
    ResponseFormat,
    ResponseFormatKind,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from dayzero.frontend.errors import FrontendError
from tests.unit.frontend.conversations import SPEC, USER, ids_of, said, spelled


@pytest.mark.parametrize(
    ("name", "conversation", "param"),
    [
        ("chatml", Conversation(()), "messages"),
        ("chatml", Conversation((Message(Role.USER, (Text("a"), Image(b"", b"", 1, 1))),)), "messages[0].content[1]"),
        ("chatml", said(("user", "a"), ("user", "x\ud83d")), "messages[1].content"),
        ("chatml", Conversation((Message(Role.USER, (Text("a"), Text("\ude00"))),)), "messages[0].content[1]"),
        ("chatml", Conversation((Message(Role.USER, (Text("a"),), name="\ud83d"),)), "messages[0].name"),
        ("chatml", Conversation((Message(Role.ASSISTANT, reasoning="\ud83d"),)), "messages[0].reasoning"),
        ("chatml", Conversation((USER,), tools=(Tool("f", SPEC),)), "tools"),
        ("chatml", Conversation((Message(Role.ASSISTANT, tool_calls=(ToolCall("", "f", ""),)),)), "messages[0].tool_calls"),
        ("chatml", Conversation((Message(Role.TOOL, (Text("a"),)),)), "messages[0].role"),
        ("chatml", Conversation((Message(Role.ASSISTANT, (Text("a"),), partial=True),)), "messages[0].partial"),
        ("chatml", Conversation((Message(Role.SYSTEM, tools=(Tool("f", SPEC),)),)), "messages[0].tools"),
        ("qwen", Conversation((USER,), tools=(Tool("f", {"a": {"\ud83d": 1}}),)), "tools[0]"),
        ("qwen", Conversation((USER,), tools=(Tool("f", SPEC),), tool_choice=ToolChoice(ToolChoiceMode.REQUIRED)), "tool_choice"),
        ("qwen", Conversation((USER,), tools=(Tool("f", SPEC),), tool_choice=ToolChoice(ToolChoiceMode.NAMED, "f")), "tool_choice"),
        (
            "qwen",
            Conversation((Message(Role.ASSISTANT, tool_calls=(ToolCall("c", "f", '{"a": "\ud83d"}'),)),)),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            "chatml",
            Conversation((USER,), response_format=ResponseFormat(ResponseFormatKind.JSON_SCHEMA, "n", {"\ud83d": 1})),
            "response_format.json_schema.schema",
        ),
        ("mistral", said(("assistant", "secret words")), "messages"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_be_told_is_a_400_that_names_the_field(frontends, name, conversation, param):
    with pytest.raises(FrontendError) as e:
        frontends[name].render(conversation, scope="")
    assert (e.value.status, e.value.param) == (400, param)
    assert "secret" not in e.value.message


def test_a_templates_own_words_of_refusal_are_shown(frontends):
    with pytest.raises(FrontendError, match="roles must alternate user/assistant"):
        frontends["mistral"].render(said(("user", "a"), ("user", "b")), scope="")


def test_half_a_surrogate_pair_hidden_in_arguments_becomes_the_replacement_character(frontends):
    call = ToolCall("c", "f", '{"a": "x\\ud83dy"}')
    ids = ids_of(
        frontends["qwen"].render(Conversation((USER, Message(Role.ASSISTANT, tool_calls=(call,)))), scope="")
    )
    assert '"x\ufffdy"' in spelled(frontends["qwen"], ids)


@pytest.mark.parametrize(
    "arguments", ['{"a":' * 3000 + "1" + "}" * 3000, '{"a": NaN}', '{"a": ' + "9" * 5000 + "}", "[1]"]
)
def test_arguments_that_are_no_plain_object_are_given_as_they_were_sent(frontends, arguments):
    call = ToolCall("c", "f", arguments)
    ids = ids_of(
        frontends["qwen"].render(Conversation((USER, Message(Role.ASSISTANT, tool_calls=(call,)))), scope="")
    )
    assert arguments in spelled(frontends["qwen"], ids)
