"""A conversation → the blocks of its prompt, in order (KIMI_K3 section 3).

Tool declaration, thinking effort, the messages, tool choice, response format, then what the model goes on from: the
generation prompt, or the last message itself where it is `partial`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

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
from dayzero.frontend.kimi_k3 import wording
from dayzero.frontend.kimi_k3.blocks import Answer, Block, Call, Content, Opening, Picture, Result, Said
from dayzero.frontend.kimi_k3.images import placeholder_tokens
from dayzero.frontend.kimi_k3.python_json import sorted_block
from dayzero.frontend.kimi_k3.tool_results import named_results
from dayzero.frontend.protocol import Channel


@dataclass(frozen=True, slots=True)
class Placed:
    """A block, the field of the request that it comes from (for errors), and the pictures in it."""

    block: Block
    param: str
    images: tuple[Image, ...] = ()


def start_of(conversation: Conversation) -> Channel:
    """What the prompt leaves open."""
    if conversation.thinking.enabled and _continued(conversation) is None:
        return Channel.THINK
    return Channel.RESPONSE


def tools_of(conversation: Conversation) -> tuple[Tool, ...]:
    """All that are declared: by the request, then by its messages."""
    return (*conversation.tools, *(tool for message in conversation.messages for tool in message.tools))


def blocks_of(conversation: Conversation, patch_limit: int) -> Iterator[Placed]:
    """Raises FrontendError naming the field, as it goes."""
    if not conversation.messages:
        raise FrontendError("at least one message is needed", param="messages")
    for at, message in enumerate(conversation.messages):
        if message.partial or message.tools:
            _check(at, message, is_last=at == len(conversation.messages) - 1)
    thinking = conversation.thinking
    if conversation.tools:
        yield _declaration(wording.TOOLS, conversation.tools, None, "tools")
    if thinking.enabled and thinking.effort:
        yield _effort(thinking.effort)
    continued = _continued(conversation)
    messages = conversation.messages[:-1] if continued else conversation.messages
    layout = _Messages(thinking.enabled, patch_limit)
    yield from layout.blocks(messages)
    yield from _tool_choice(conversation.tool_choice)
    yield from _response_format(conversation.response_format)
    if continued is None:
        yield Placed(Opening(thinking.enabled), "messages")
    else:
        yield layout.answer(len(messages), continued)


def _continued(conversation: Conversation) -> Message | None:
    """The last message, where the model shall go on with it."""
    last = conversation.messages[-1] if conversation.messages else None
    return last if last is not None and last.partial else None


def _check(at: int, message: Message, *, is_last: bool) -> None:
    """Raises FrontendError for what only some messages can be or have."""
    if message.partial and not (is_last and message.role is Role.ASSISTANT and not message.tool_calls):
        raise _refusal(at, "partial", "only a last assistant message without tool calls can be continued")
    if message.tools:
        if message.role is not Role.SYSTEM:
            raise _refusal(at, "tools", "only a system message can declare tools")
        if any(not isinstance(part, Text) or part.text for part in message.content):
            raise _refusal(at, "content", "a message that declares tools has no content of its own")


class _Messages:
    """The messages one after another. Remembers the calls that results may answer, and how many did."""

    def __init__(self, thinking: bool, patch_limit: int) -> None:  # noqa: FBT001  one of two, named at its only call
        self._thinking = thinking
        self._patch_limit = patch_limit
        self._calls: tuple[ToolCall, ...] = ()
        self._results = 0

    def blocks(self, messages: tuple[Message, ...]) -> Iterator[Placed]:
        for is_result, neighbours in groupby(enumerate(messages), lambda one: one[1].role is Role.TOOL):
            if is_result:
                yield from self._run_of_results(list(neighbours))
                continue
            for at, message in neighbours:
                yield self.answer(at, message) if message.role is Role.ASSISTANT else self._said(at, message)

    def answer(self, at: int, message: Message) -> Placed:
        self._calls, self._results = message.tool_calls, 0
        reasoning = message.reasoning or ""
        return self._placed(
            at,
            message,
            Answer(
                self._thinking,
                self._content(at, message),
                "" if reasoning.isspace() or not self._thinking else reasoning,
                message.name or None,
                tuple(Call(call.name, call.arguments) for call in message.tool_calls),
                message.partial,
            ),
        )

    def _said(self, at: int, message: Message) -> Placed:
        if message.tools:
            return _declaration(wording.MORE_TOOLS, message.tools, message.name, f"messages[{at}].tools")
        said = Said(
            "user" if message.role is Role.USER else "system",
            self._content(at, message),
            message.name or None,
        )
        return self._placed(at, message, said)

    def _run_of_results(self, run: list[tuple[int, Message]]) -> Iterator[Placed]:
        for result in named_results(run, self._calls, self._results):
            content = self._content(result.at, result.message)
            yield self._placed(result.at, result.message, Result(result.tool, result.index, content))
        self._results += len(run)

    def _content(self, at: int, message: Message) -> Content:
        return tuple(
            part.text if isinstance(part, Text) else self._picture(part, at, place)
            for place, part in enumerate(message.content)
        )

    def _picture(self, image: Image, at: int, place: int) -> Picture:
        if image.width_px < 1 or image.height_px < 1:
            raise _refusal(at, f"content[{place}]", "a picture without a pixel cannot be shown")
        pads = placeholder_tokens(image.width_px, image.height_px, self._patch_limit)
        return Picture(image.width_px, image.height_px, pads)

    def _placed(self, at: int, message: Message, block: Block) -> Placed:
        images = tuple(part for part in message.content if isinstance(part, Image))
        return Placed(block, f"messages[{at}]", images)


def _declaration(intro: str, tools: tuple[Tool, ...], name: str | None, param: str) -> Placed:
    text = intro + sorted_block([tool.spec for tool in tools], param)
    return Placed(Said("system", (text,), name or None, "tool-declare"), param)


def _effort(level: str) -> Placed:
    if level not in wording.EFFORTS:
        raise FrontendError(f"use one of {', '.join(wording.EFFORTS)}", param="reasoning_effort")
    return _server_says("thinking-effort", wording.effort(level), "reasoning_effort")


def _tool_choice(choice: ToolChoice) -> Iterator[Placed]:
    """A named tool is for the grammar: the model knows no word for it, so it is told that it must call."""
    match choice.mode:
        case ToolChoiceMode.REQUIRED | ToolChoiceMode.NAMED:
            yield _server_says("tool-choice", wording.MUST_CALL, "tool_choice")
        case ToolChoiceMode.NONE:
            yield _server_says("tool-choice", wording.MUST_NOT_CALL, "tool_choice")
        case ToolChoiceMode.AUTO:
            pass


def _response_format(wanted: ResponseFormat) -> Iterator[Placed]:
    match wanted.kind:
        case ResponseFormatKind.JSON_OBJECT:
            yield _server_says("response-format", wording.response_format("json_object"), "response_format")
        case ResponseFormatKind.JSON_SCHEMA:
            param = "response_format.json_schema.schema"
            text = wording.json_schema(sorted_block(wanted.schema or {}, param))
            yield _server_says("response-format", text, param)
        case ResponseFormatKind.TEXT:
            pass


def _server_says(kind: str, text: str, param: str) -> Placed:
    return Placed(Said("system", (text,), None, kind), param)


def _refusal(at: int, field: str, message: str) -> FrontendError:
    return FrontendError(message, param=f"messages[{at}].{field}")
