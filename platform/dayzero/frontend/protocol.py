"""The frontend seam: one ModelFrontend per model, one OutputDecoder per answer.

- F1  `render` is pure: the same conversation gives the same ids, in any process.
- F2  Exactly the control ids that the renderer put there are in the prompt, whatever the strings spell.
- F3  A decoder starts where the renderer ended (`Prompt.start`).
- F4  Streamed equals buffered: however ids are split over `push` calls, the folded events are the same.
- F5  A decoder never raises on model output and never emits part of a code point or part of a stop string.
- F6  `finish` is called exactly once and its last event is the only Finished.
- F7  Every id pushed is counted in exactly one field of `OutputDecoder.tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from dayzero.frontend.conversation import Conversation, ResponseFormat, Tool, ToolChoice
from dayzero.frontend.events import Event, FinishReason


class Channel(StrEnum):
    """Where the output begins: what the prompt left open."""

    RESPONSE = "response"
    THINK = "think"


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """A picture's placeholder ids within the prompt."""

    content: bytes
    digest: bytes
    mime_type: str
    offset_tokens: int
    length_tokens: int


@dataclass(frozen=True, slots=True)
class GrammarRequest:
    """What the output must obey; `kind` and `spec` as in `dayzero.engine.types.Grammar`."""

    kind: str
    spec: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the answer may be: the request's one table of tools, for renderer, grammar, decoder and response.

    `tools`: all that were declared, by the request and by its messages; None where nobody knows (an operator decodes
    ids), and then nothing is checked. `first_call`: the number, over the conversation, of the answer's first call.
    """

    tools: tuple[Tool, ...] | None = None
    choice: ToolChoice = field(default_factory=ToolChoice)
    response_format: ResponseFormat = field(default_factory=ResponseFormat)
    first_call: int = 0


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Where the ids of an answer went.

    `calls`: names, keys and values of tool calls, with the tags that hold them. `control`: markers, other tags and stop
    ids. `dropped`: in no field of the answer, by a written rule.
    """

    reasoning: int = 0
    content: int = 0
    calls: int = 0
    control: int = 0
    dropped: int = 0

    @property
    def total(self) -> int:
        return self.reasoning + self.content + self.calls + self.control + self.dropped


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation.

    `ids`: little-endian uint32 buffer. `billed_tokens`: what usage reports, which may leave out the tokens that
    open the last channel. `stop_ids`: the ids that end the model's turn.
    """

    ids: bytes
    start: Channel
    billed_tokens: int
    stop_ids: tuple[int, ...]
    media: tuple[MediaSpan, ...] = ()
    grammar: GrammarRequest | None = None
    expected: Expected = field(default_factory=Expected)

    @property
    def tokens(self) -> int:
        return len(self.ids) // 4


@dataclass(frozen=True, slots=True)
class PromptSegment:
    """A part of a prompt that was encoded on its own: a run of one control id, or a text."""

    kind: Literal["control", "text"]
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheSize:
    held_bytes: int
    bound_bytes: int


@runtime_checkable
class OutputDecoder(Protocol):
    @property
    def stopped(self) -> bool:
        """A stop string was met: nothing more will be visible, and the engine's work should be aborted."""
        ...

    @property
    def tokens(self) -> TokenCounts:
        """Of the ids pushed so far."""
        ...

    def push(self, ids: Sequence[int]) -> list[Event]:
        """Events that are certain after these ids. Ids after `stopped` are ignored."""
        ...

    def finish(self, reason: FinishReason) -> list[Event]:
        """What was held back, then Finished. A met stop string overrules `reason`."""
        ...


@runtime_checkable
class ModelFrontend(Protocol):
    @property
    def oddities(self) -> frozenset[str]:
        """Every name that `Finished.degraded` may hold."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end the model's turn."""
        ...

    def render(self, conversation: Conversation, *, scope: str) -> Prompt:
        """Raises a FrontendError (a 400 that names the field) for what this model cannot be told.

        `scope`: whose texts these are. What a frontend remembers of one scope's texts helps no other, not even in time.
        """
        ...

    def segments(self, conversation: Conversation) -> list[PromptSegment]:
        """What the prompt is made of, for a person to read. Raises FrontendError, as `render`."""
        ...

    def cache_size(self) -> CacheSize | None:
        """Of what is remembered of earlier prompts; None where nothing ever is."""
        ...

    def decoder(self, prompt: Prompt, *, stop: Sequence[str] = ()) -> OutputDecoder: ...

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """A token as text (U+FFFD for part of a code point) and as bytes: what logprobs show."""
        ...
