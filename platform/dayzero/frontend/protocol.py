"""The frontend seam: one ModelFrontend per model, one OutputDecoder per answer.

- F1  `render` is pure: the same conversation gives the same ids, in any process.
- F2  Exactly the control ids that the renderer put there are in the prompt, whatever the strings spell.
- F3  A decoder starts where the renderer ended (`Prompt.start`).
- F4  Streamed equals buffered: however ids are split over `push` calls, the folded events are the same.
- F5  A decoder never raises on model output and never emits part of a code point or part of a stop string.
- F6  `finish` is called exactly once and its last event is the only Finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from dayzero.frontend.conversation import Conversation
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

    @property
    def tokens(self) -> int:
        return len(self.ids) // 4


@runtime_checkable
class OutputDecoder(Protocol):
    @property
    def stopped(self) -> bool:
        """A stop string was met: nothing more will be visible, and the engine's work should be aborted."""
        ...

    def push(self, ids: Sequence[int]) -> list[Event]:
        """Events that are certain after these ids. Ids after `stopped` are ignored."""
        ...

    def finish(self, reason: FinishReason) -> list[Event]:
        """What was held back, then Finished. A met stop string overrules `reason`."""
        ...


@runtime_checkable
class ModelFrontend(Protocol):
    def render(self, conversation: Conversation) -> Prompt:
        """Raises a FrontendError (a 400 that names the field) for what this model cannot be told."""
        ...

    def decoder(self, prompt: Prompt, *, stop: Sequence[str] = ()) -> OutputDecoder: ...

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """A token as text (U+FFFD for part of a code point) and as bytes: what logprobs show."""
        ...
