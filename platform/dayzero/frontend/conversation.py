"""A conversation, whatever dialect it came in: what a frontend renders.

- Values only, checked by the dialect before they get here; text holds no lone surrogate.
- Strings are the user's. A renderer never lets them become control tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded upload: its bytes, its content hash and its original size in pixels."""

    content: bytes
    digest: bytes
    width_px: int
    height_px: int
    mime_type: str = "image/png"


Part = Text | Image


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the history. `arguments` is the raw string the client sent, JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function tool. `spec` is the client's whole declaration, as parsed."""

    name: str
    spec: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `tools` (a system message's dynamic tools), `reasoning` and `partial` are K3's."""

    role: Role
    content: tuple[Part, ...] = ()
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tools: tuple[Tool, ...] = ()
    partial: bool = False

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, Text))


class ToolChoiceMode(StrEnum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    name: str | None = None
    parallel: bool = True


class ResponseFormatKind(StrEnum):
    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    kind: ResponseFormatKind = ResponseFormatKind.TEXT
    name: str | None = None
    schema: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether the model thinks aloud first, and how much (`effort`: the model's own words)."""

    enabled: bool = True
    effort: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    response_format: ResponseFormat = field(default_factory=ResponseFormat)
    thinking: Thinking = field(default_factory=Thinking)
