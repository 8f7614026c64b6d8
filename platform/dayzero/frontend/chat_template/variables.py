"""A conversation as the variables a chat template reads, in Hugging Face's shape.

- Every string of the request is checked (no lone surrogate) before any is rendered; the error names its field.
- What this model cannot be told is a 400, never dropped: pictures, forced tool choice, tools for a template that
  knows none, a message to be continued, tools declared in a message.
- A call's arguments are given as the object they are, or as the string that was sent if they are not one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from dayzero.frontend.chat_template.template import ChatTemplate, ContentForm
from dayzero.frontend.conversation import Conversation, Image, Message, Role, Text, ToolChoiceMode
from dayzero.frontend.errors import FrontendError

DEPTH_LIMIT = 64
"""Levels of nesting in a tool's declaration or a call's arguments."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def variables(conversation: Conversation, template: ChatTemplate) -> dict[str, Any]:
    """`messages`, `tools` (or None) and `enable_thinking`, unmarked. Raises FrontendError."""
    if not conversation.messages:
        _refuse("messages", "at least one message is needed")
    messages = [
        _message(message, f"messages[{i}]", template) for i, message in enumerate(conversation.messages)
    ]
    effort = conversation.thinking.effort
    if effort:
        check_text(effort, "reasoning_effort")
    return {
        "messages": messages,
        "tools": _tools(conversation, template),
        "enable_thinking": conversation.thinking.enabled,
        **({"reasoning_effort": effort} if effort else {}),
    }


def strings(value: Any) -> Iterator[str]:
    """Every string in it, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def check_text(text: str, param: str) -> None:
    """Raises FrontendError for a lone surrogate: it is not text, and no bytes stand for it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(param, "the text holds half of a surrogate pair; send whole characters")


def _message(message: Message, param: str, template: ChatTemplate) -> dict[str, Any]:
    if message.partial:
        _refuse(f"{param}.partial", "this model cannot continue a message; leave `partial` out")
    if message.tools:
        _refuse(f"{param}.tools", "this model takes tools only at the top of the request")
    if (message.tool_calls or message.role is Role.TOOL) and not _knows_tools(template, message):
        _refuse(
            f"{param}.tool_calls" if message.tool_calls else f"{param}.role",
            "this model's chat template knows no tool calls; leave them out",
        )
    shown: dict[str, Any] = {
        "role": _role(message.role, template),
        "content": _content(message, param, template.content_form),
    }
    for key, text in (
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning", message.reasoning),
        ("reasoning_content", message.reasoning),
    ):
        if text is not None:
            check_text(text, f"{param}.{key}")
            shown[key] = text
    if message.tool_calls:
        shown["tool_calls"] = [
            _tool_call(call.id, call.name, call.arguments, f"{param}.tool_calls[{i}]")
            for i, call in enumerate(message.tool_calls)
        ]
    return shown


def _knows_tools(template: ChatTemplate, message: Message) -> bool:
    return template.mentions("tool_calls") if message.tool_calls else template.mentions("tool")


def _role(role: Role, template: ChatTemplate) -> str:
    """`developer` is the newer word for `system`; few templates know it."""
    if role is Role.DEVELOPER and not template.mentions("developer"):
        return Role.SYSTEM.value
    return role.value


def _content(message: Message, param: str, form: ContentForm) -> str | list[dict[str, Any]]:
    for j, part in enumerate(message.content):
        if isinstance(part, Image):
            _refuse(f"{param}.content[{j}]", "this model takes no pictures; send text")
        check_text(part.text, f"{param}.content" if len(message.content) == 1 else f"{param}.content[{j}]")
    if form is ContentForm.STRING or (form is ContentForm.EITHER and len(message.content) < 2):
        return message.text
    return [{"type": "text", "text": part.text} for part in message.content if isinstance(part, Text)]


def _tool_call(call_id: str, name: str, arguments: str, param: str) -> dict[str, Any]:
    check_text(call_id, f"{param}.id")
    check_text(name, f"{param}.function.name")
    check_text(arguments, f"{param}.function.arguments")
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": _arguments(arguments)},
    }


def _arguments(raw: str) -> dict[str, Any] | str:
    try:
        parsed = json.loads(raw or "{}", parse_constant=_not_json)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(parsed, dict) or _deeper(parsed, DEPTH_LIMIT):
        return raw
    return _whole(parsed)  # type: ignore[no-any-return]


def _not_json(_constant: str) -> NoReturn:
    raise ValueError


def _whole(value: Any) -> Any:
    """An escape in JSON can hide half of a surrogate pair; in a history it becomes U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def _tools(conversation: Conversation, template: ChatTemplate) -> list[dict[str, Any]] | None:
    choice = conversation.tool_choice.mode
    if choice in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED):
        _refuse("tool_choice", "this model cannot be made to call a tool; use `auto` or `none`")
    if not conversation.tools or choice is ToolChoiceMode.NONE:
        return None
    if "tools" not in template.reads:
        _refuse("tools", "this model's chat template knows no tools; leave them out")
    return [_declaration(tool.spec, f"tools[{i}]") for i, tool in enumerate(conversation.tools)]


def _declaration(spec: Mapping[str, Any], param: str) -> dict[str, Any]:
    if _deeper(spec, DEPTH_LIMIT):
        _refuse(param, f"a tool's declaration may be nested {DEPTH_LIMIT} levels deep at most")
    for text in strings(spec):
        check_text(text, param)
    return dict(spec)


def _deeper(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        return levels == 0 or any(_deeper(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return levels == 0 or any(_deeper(item, levels - 1) for item in value)
    return False


def _refuse(param: str, message: str) -> NoReturn:
    raise FrontendError(message, param=param)
