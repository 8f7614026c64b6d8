"""The body of `POST /v1/chat/completions`, as types.

- These types are the validation and the source of the OpenAPI page: there is no second description.
- Fields this server does not know are ignored, as clients of other servers send them.
- K3's own limits stand here where they are the API's (stop: KIMI_K3 section 5); what depends on the model is
  checked by its frontend.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_STOPS = 5
MAX_STOP_BYTES = 32
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 1024
MAX_CALLS = 1024
MAX_BIASES = 4096

Name = Annotated[str, Meta(min_length=1, max_length=256)]
ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", min_length=1, max_length=256)]
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
    name: Name
    arguments: str | None = None


class CalledTool(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Function(msgspec.Struct, frozen=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolParam(msgspec.Struct, frozen=True):
    function: Function
    type: Literal["function"] = "function"


class SystemMessage(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    content: TextContent
    name: Name | None = None


class DeveloperMessage(msgspec.Struct, frozen=True, tag="developer", tag_field="role"):
    content: TextContent
    name: Name | None = None


class UserMessage(msgspec.Struct, frozen=True, tag="user", tag_field="role"):
    content: MixedContent
    name: Name | None = None


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant", tag_field="role"):
    content: str | list[TextPart | RefusalPart] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[CalledTool], Meta(max_length=MAX_CALLS)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag="tool", tag_field="role"):
    content: MixedContent
    tool_call_id: Name
    name: Name | None = None


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
    prompt_cache_key: Annotated[str, Meta(max_length=256)] | None = None
    user: Annotated[str, Meta(max_length=256)] | None = None
    # vLLM's extensions, which load generators and evaluation harnesses send.
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1_048_576)] | None = None
    ignore_eos: bool | None = None


decoder = msgspec.json.Decoder(ChatCompletionRequest)
