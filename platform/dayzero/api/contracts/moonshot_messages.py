"""What Kimi K3's messages and tools may be: the rules of KIMI_K3 section 5 that need more than one field.

- Tools are declared in the request and, from some message on, in system messages; names are unique over all of them.
- A tool's result answers a call of the assistant message before it, by id.
- What the frontend refuses for every dialect is not repeated here: `partial` where nothing can go on, text beside a
  message's tools, arguments that are no object.
"""

from collections.abc import Iterator

from dayzero.api.chat.request import (
    AssistantMessage,
    ChatCompletionRequest,
    MessageParam,
    SystemMessage,
    ToolMessage,
    ToolParam,
)
from dayzero.errors import InvalidRequestError


def declared_tools(request: ChatCompletionRequest) -> Iterator[tuple[str, ToolParam]]:
    """Every tool of every carrier, with the path of its declaration."""
    for i, tool in enumerate(request.tools or ()):
        yield f"tools[{i}]", tool
    for m, message in enumerate(request.messages):
        if isinstance(message, SystemMessage):
            for i, tool in enumerate(message.tools or ()):
                yield f"messages[{m}].tools[{i}]", tool


def check_messages(request: ChatCompletionRequest) -> None:
    """Raises InvalidRequestError naming the field."""
    _check_names(request)
    call_ids: set[str] = set()
    for i, message in enumerate(request.messages):
        where = f"messages[{i}]"
        _check_tools(message, where)
        if isinstance(message, AssistantMessage):
            call_ids = {call.id for call in message.tool_calls or ()}
        elif isinstance(message, ToolMessage) and message.tool_call_id not in call_ids:
            raise InvalidRequestError.of(
                f"{where}.tool_call_id",
                f"`{where}` answers no call of the assistant message before it; its `tool_call_id` must be one of"
                " that message's `tool_calls`.",
                code="unknown_tool_call_id",
            )


def _check_names(request: ChatCompletionRequest) -> None:
    seen: dict[str, str] = {}
    for path, tool in declared_tools(request):
        name = tool.function.name
        if name in seen:
            raise InvalidRequestError.of(
                f"{path}.function.name",
                f"The tool at `{seen[name]}` has this name already; names are unique.",
            )
        seen[name] = path


def _check_tools(message: MessageParam, where: str) -> None:
    if not isinstance(message, SystemMessage):
        if message.tools is not None:
            raise InvalidRequestError.of(f"{where}.tools", "Only a system message may declare tools.")
    elif message.tools is None and message.content is None:
        raise InvalidRequestError.of(
            f"{where}.content",
            f"Missing required field `{where}.content`.",
            code="missing_required_parameter",
        )
