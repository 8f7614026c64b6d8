"""ChatCompletionRequest → the frontend's Conversation and the sampling it asks for. Pure.

A conversation is made under its model's contract, which is checked here, so that nothing can be rendered unchecked.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from dayzero.api.body import MAX_DEPTH, check_depth
from dayzero.api.chat.request import (
    MAX_STOP_BYTES,
    AssistantMessage,
    ChatCompletionRequest,
    ImagePart,
    JsonObjectFormat,
    JsonSchemaFormat,
    MessageParam,
    NamedToolChoice,
    ReasoningDetail,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    ToolParam,
)
from dayzero.api.contracts import OPENAI, Contract
from dayzero.api.pictures import picture
from dayzero.engine.types import Sampling
from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import (
    Conversation,
    Message,
    Part,
    ResponseFormat,
    ResponseFormatKind,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What of a request is not conversation. `max_tokens` None means the model's default."""

    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    affinity: str | None


def conversation(request: ChatCompletionRequest, contract: Contract = OPENAI) -> Conversation:
    """Raises InvalidRequestError naming the field."""
    contract.check(request)
    tools = _tools(request.tools or (), "tools")
    messages = tuple(_message(m, f"messages[{i}]", contract) for i, m in enumerate(request.messages))
    declared = {tool.name for tool in tools} | {tool.name for m in messages for tool in m.tools}
    return Conversation(
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(request, declared),
        response_format=_response_format(request),
        thinking=contract.thinking(request),
    )


def grammar_param(request: ChatCompletionRequest) -> str:
    """The field that made a grammar necessary: what an engine that has none refuses."""
    if isinstance(request.response_format, JsonObjectFormat | JsonSchemaFormat):
        return "response_format"
    return "tools" if request.tool_choice in (None, "auto", "none") else "tool_choice"


def pieces(request: ChatCompletionRequest) -> int:
    """Messages and content parts: what a conversation costs to build, before it is built."""
    return len(request.messages) + sum(
        len(message.content) for message in request.messages if isinstance(message.content, list)
    )


def parameters(request: ChatCompletionRequest) -> Parameters:
    """Raises InvalidRequestError naming the field."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError.of(
            "stream_options", "`stream_options` is only allowed with `stream: true`."
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError.of("top_logprobs", "`top_logprobs` needs `logprobs: true`.")
    return Parameters(
        # The newer name wins where both are sent, as at OpenAI.
        max_tokens=request.max_completion_tokens or request.max_tokens,
        stop=_stop(request.stop),
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        logprobs=bool(request.logprobs),
        affinity=request.prompt_cache_key,
    )


def sampling(
    request: ChatCompletionRequest,
    *,
    max_tokens: int,
    stop_ids: Sequence[int],
    contract: Contract = OPENAI,
) -> Sampling:
    """Raises InvalidRequestError naming the field."""

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    min_tokens = given(request.min_tokens, 0)
    if min_tokens > max_tokens:
        raise InvalidRequestError.of(
            "min_tokens", f"`min_tokens` is more than the {max_tokens} tokens allowed."
        )
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=given(request.temperature, 1.0),
        top_p=given(request.top_p, contract.default_top_p),
        top_k=max(0, given(request.top_k, 0)),
        min_p=given(request.min_p, 0.0),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        repetition_penalty=given(request.repetition_penalty, 1.0),
        seed=request.seed,
        # An engine ignores its own end of text only; ids that it is told to stop at hold all the same.
        stop_token_ids=() if request.ignore_eos else tuple(stop_ids),
        ignore_eos=bool(request.ignore_eos),
        logprobs=given(request.top_logprobs, 0) if request.logprobs else None,
        logit_bias=_logit_bias(request.logit_bias or {}),
    )


def _message(message: MessageParam, where: str, contract: Contract) -> Message:
    role = Role(message.__struct_config__.tag)  # type: ignore[arg-type]
    extended = contract.extended_messages
    content = _content(message.content, where, pictures=extended)
    partial = extended and message.partial not in (None, False)
    if isinstance(message, AssistantMessage):
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments or "")
            for call in message.tool_calls or ()
        )
        reasoning = message.reasoning_content or message.reasoning
        if extended:
            reasoning = reasoning or _details(message.reasoning_details or ())
        return Message(
            role, content, name=message.name, reasoning=reasoning, tool_calls=calls, partial=partial
        )
    if isinstance(message, ToolMessage):
        return Message(role, content, name=message.name, tool_call_id=message.tool_call_id, partial=partial)
    if isinstance(message, SystemMessage) and extended:
        tools = _tools(message.tools or (), f"{where}.tools")
        return Message(role, content, name=message.name, tools=tools, partial=partial)
    return Message(role, content, name=message.name, partial=partial)


def _details(details: Iterable[ReasoningDetail]) -> str:
    """OpenRouter's pieces, joined; a summary only where the text itself is not there."""
    return "".join(detail.text or detail.summary or "" for detail in details)


def _content(content: Any, where: str, *, pictures: bool) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    parts: list[Part] = []
    for i, part in enumerate(content):
        match part:
            case TextPart():
                parts.append(Text(part.text))
            case RefusalPart():
                parts.append(Text(part.refusal))
            case ImagePart() if pictures:
                parts.append(picture(part.image_url.url, f"{where}.content[{i}].image_url.url"))
            case ImagePart():
                raise InvalidRequestError.of(
                    f"{where}.content[{i}]",
                    "This model takes text only; remove the image.",
                    code="unsupported_content",
                )
    return tuple(parts)


def _tools(tools: Sequence[ToolParam], where: str) -> tuple[Tool, ...]:
    seen: set[str] = set()
    declared = []
    for i, tool in enumerate(tools):
        name = tool.function.name
        if name in seen:
            raise InvalidRequestError.of(f"{where}[{i}].function.name", "Two tools have this name.")
        seen.add(name)
        check_depth(tool.function.parameters, f"{where}[{i}].function.parameters")
        check_depth(tool.declared, f"{where}[{i}]", MAX_DEPTH + 2)
        declared.append(Tool(name, tool.declared, strict=bool(tool.function.strict)))
    return tuple(declared)


def _tool_choice(request: ChatCompletionRequest, declared: AbstractSet[str]) -> ToolChoice:
    choice = request.tool_choice or "auto"
    parallel = request.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        name = choice.function.name
        if name not in declared:
            raise InvalidRequestError.of("tool_choice.function.name", "No tool of this name is declared.")
        return ToolChoice(ToolChoiceMode.NAMED, name, parallel=parallel)
    if choice == "required" and not declared:
        raise InvalidRequestError.of("tool_choice", "`tool_choice: required` needs at least one tool.")
    return ToolChoice(ToolChoiceMode(choice), parallel=parallel)


def _response_format(request: ChatCompletionRequest) -> ResponseFormat:
    match request.response_format:
        case JsonObjectFormat():
            return ResponseFormat(ResponseFormatKind.JSON_OBJECT)
        case JsonSchemaFormat(json_schema=schema):
            if schema.schema is None:
                raise InvalidRequestError.of(
                    "response_format.json_schema.schema", "A JSON schema is required."
                )
            check_depth(schema.schema, "response_format.json_schema.schema")
            return ResponseFormat(
                ResponseFormatKind.JSON_SCHEMA, schema.name, schema.schema, bool(schema.strict)
            )
        case _:
            return ResponseFormat()


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for i, text in enumerate(stops):
        field = "stop" if isinstance(stop, str) else f"stop[{i}]"
        if not text:
            raise InvalidRequestError.of(field, "A stop string must not be empty.")
        if len(text.encode()) > MAX_STOP_BYTES:
            raise InvalidRequestError.of(field, f"A stop string has at most {MAX_STOP_BYTES} bytes.")
    return stops


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    out = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise InvalidRequestError.of(
                "logit_bias", "Keys of `logit_bias` are token ids, written as numbers."
            )
        out[int(key)] = value
    return out
