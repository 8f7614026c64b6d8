"""The body of `POST /v1/chat/completions`, as types.

- These types are the validation and the source of the OpenAPI page: there is no second description.
- Fields this server does not know are ignored, as clients of other servers send them.
- What every model has in common stands here; what depends on the model is checked by its contract (`api.contracts`)
  and its frontend. A field typed Any is known only so that a contract can refuse it by name.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

_Body = TypeVar("_Body", bound="ChatCompletionRequest")

MAX_STOPS = 5
MAX_STOP_BYTES = 32
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 1024
MAX_CALLS = 1024
MAX_BIASES = 4096
MAX_CALL_CHARACTERS = 512
"""Of a call's name and of its id in the history: a model wrote the name, and `functions.NAME:INDEX` holds it."""

Name = Annotated[str, Meta(min_length=1, max_length=256)]
# The lookahead: Python's `$` also stands before a last line break.
ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(?!\n)$", min_length=1, max_length=256)]
CallName = Annotated[str, Meta(min_length=1, max_length=MAX_CALL_CHARACTERS)]
CallId = Annotated[str, Meta(max_length=MAX_CALL_CHARACTERS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1, le=1_048_576)]


class TextPart(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class RefusalPart(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    refusal: str


class ImageUrl(msgspec.Struct, frozen=True):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(msgspec.Struct, frozen=True, tag="image_url", tag_field="type"):
    image_url: ImageUrl


TextContent = str | Annotated[list[TextPart], Meta(min_length=1)]
MixedContent = str | Annotated[list[TextPart | ImagePart], Meta(min_length=1)]


class FunctionCall(msgspec.Struct, frozen=True):
    name: CallName
    arguments: str | None = None


class CalledTool(msgspec.Struct, frozen=True):
    id: CallId
    function: FunctionCall
    type: Literal["function"] = "function"


class Function(msgspec.Struct, frozen=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDeclaration(msgspec.Struct, frozen=True):
    function: Function
    type: Literal["function"] = "function"


class ToolParam:
    """A declared tool: `function` as this server reads it, `declared` as the client wrote it.

    What a model is shown is the client's own declaration, fields that this server does not know included.
    """

    __slots__ = ("declared", "function")

    def __init__(self, declared: dict[str, Any]) -> None:
        """Raises msgspec.ValidationError."""
        self.declared = declared
        self.function = msgspec.convert(declared, ToolDeclaration).function


class ReasoningDetail(msgspec.Struct, frozen=True):
    """One piece of reasoning in OpenRouter's form; those without text (encrypted ones) say nothing to a model."""

    type: str | None = None
    text: str | None = None
    summary: str | None = None


class SystemMessage(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    """`tools`: declared from here on, in a message of their own (Kimi K3); the content is then empty or absent."""

    content: TextContent | None = None
    name: Name | None = None
    tools: Annotated[list[ToolParam], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None
    partial: Any = None


class DeveloperMessage(msgspec.Struct, frozen=True, tag="developer", tag_field="role"):
    content: TextContent
    name: Name | None = None
    tools: Any = None
    partial: Any = None


class UserMessage(msgspec.Struct, frozen=True, tag="user", tag_field="role"):
    content: MixedContent
    name: Name | None = None
    tools: Any = None
    partial: Any = None


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant", tag_field="role"):
    """`partial`: the answer goes on from this content (Kimi K3). Reasoning: the first of its three spellings with text."""

    content: str | list[TextPart | RefusalPart] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[CalledTool], Meta(max_length=MAX_CALLS)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None
    refusal: str | None = None
    tools: Any = None
    partial: bool | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag="tool", tag_field="role"):
    content: MixedContent
    tool_call_id: CallId
    name: Name | None = None
    tools: Any = None
    partial: Any = None


MessageParam = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class NamedFunction(msgspec.Struct, frozen=True):
    name: ToolName


class NamedToolChoice(msgspec.Struct, frozen=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class JsonSchema(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    pass


class JsonObjectFormat(msgspec.Struct, frozen=True, tag="json_object", tag_field="type"):
    pass


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag="json_schema", tag_field="type"):
    json_schema: JsonSchema


class ThinkingParam(msgspec.Struct, frozen=True):
    """Moonshot's and, in part, Anthropic's form. `effort` wins over `reasoning_effort`; `keep`: earlier reasoning."""

    type: str | None = None
    effort: str | None = None
    keep: str | None = None


class ChatCompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | None
    ) = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    tools: Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    reasoning_effort: str | None = None
    thinking: ThinkingParam | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=256)] | None = None
    user: Annotated[str, Meta(max_length=256)] | None = None
    # vLLM's extensions, which load generators and evaluation harnesses send.
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1_048_576)] | None = None
    ignore_eos: bool | None = None


def _read_own_type(kind: type, value: Any) -> Any:
    """Msgspec's hook for types that are not its own."""
    if kind is not ToolParam:
        raise NotImplementedError
    try:
        return ToolParam(value)
    except msgspec.ValidationError as e:
        raise ValueError(str(e)) from None  # msgspec adds the place of the tool itself to this one only


def schema_of_own_type(kind: type) -> dict[str, Any]:
    """The same for a type's JSON schema."""
    if kind is ToolParam:
        return {"$ref": "#/components/schemas/ToolDeclaration"}
    raise NotImplementedError


def decoder_of(body: type[_Body]) -> msgspec.json.Decoder[_Body]:
    """Of a chat request or a kind of it."""
    return msgspec.json.Decoder(body, dec_hook=_read_own_type)


decoder = decoder_of(ChatCompletionRequest)

_ARGUMENTS = re.compile(r"messages\[\d+\]\.tool_calls\[\d+\]\.function\.arguments")


def mendable(path: str) -> bool:
    """Where half of a surrogate pair becomes U+FFFD (DESIGN 8.3): a model wrote it, and the client cannot take it back."""
    return _ARGUMENTS.fullmatch(path) is not None
