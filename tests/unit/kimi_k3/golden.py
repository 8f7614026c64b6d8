"""The golden prompts: the encoder's own input, which is not the API's, as a Conversation."""

import json
import re
from pathlib import Path

from dayzero.frontend.conversation import (
    Conversation,
    Image,
    Message,
    ResponseFormat,
    ResponseFormatKind,
    Role,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "kimi-k3"
PROMPTS = SHARED / "prompts.jsonl"

_SIZE = re.compile(r"image ([0-9]+)x([0-9]+)")


def goldens():
    return [json.loads(line) for line in PROMPTS.read_text().splitlines()]


def conversation_of(request):
    sizes = iter(_SIZE.findall("".join(request.get("image_prompts", ()))))
    return Conversation(
        messages=tuple(_message(message, sizes) for message in request["messages"]),
        tools=_tools(request),
        tool_choice=ToolChoice(ToolChoiceMode(request.get("tool_choice", "auto"))),
        response_format=_response_format(request.get("response_format")),
        thinking=Thinking(request.get("thinking", True), request.get("thinking_effort")),
    )


def _message(message, sizes):
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return Message(
        Role(message["role"]),
        tuple(_part(part, sizes) for part in parts),
        name=message.get("name"),
        reasoning=message.get("reasoning_content"),
        tool_calls=tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"].get("arguments") or "")
            for call in message.get("tool_calls", ())
        ),
        tool_call_id=message.get("tool_call_id"),
        tools=_tools(message),
    )


def _part(part, sizes):
    if part["type"] == "text":
        return Text(part["text"])
    width, height = next(sizes)
    return Image(b"picture", b"digest", int(width), int(height))


def _tools(carrier):
    return tuple(
        Tool(spec["function"]["name"], spec, strict=spec["function"].get("strict", False))
        for spec in carrier.get("tools", ())
    )


def _response_format(wanted):
    if wanted is None:
        return ResponseFormat()
    declared = wanted.get("json_schema", {})
    return ResponseFormat(
        ResponseFormatKind(wanted["type"]),
        declared.get("name"),
        declared.get("schema"),
        declared.get("strict", False),
    )
