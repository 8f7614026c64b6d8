"""The frontend of any model with a Hugging Face chat template: implements `dayzero.frontend.protocol.ModelFrontend`.

A conversation becomes variables, their strings are marked as the user's, the template is rendered, the rendered
text is cut at the control tokens that are the template's own, and the rest is encoded as plain text.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from dayzero.frontend.chat_template import variables as request
from dayzero.frontend.chat_template.decoder import ODDITIES, ReasoningFormat, TextDecoder
from dayzero.frontend.chat_template.spellings import Piece, Spellings, unused_marks
from dayzero.frontend.chat_template.template import ChatTemplate
from dayzero.frontend.chat_template.text_encoder import TextEncoder
from dayzero.frontend.chat_template.vocabulary import Vocabulary
from dayzero.frontend.conversation import (
    Conversation,
    Message,
    ResponseFormat,
    ResponseFormatKind,
    Role,
    Text,
    ToolChoiceMode,
)
from dayzero.frontend.errors import FrontendError
from dayzero.frontend.protocol import Channel, GrammarRequest, Prompt, PromptSegment

_PROBE = "dayzero"


class ChatTemplateFrontend:
    """Safe to share between threads. `tool_template` replaces `template` when tools are declared."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        *,
        tool_template: ChatTemplate | None = None,
        special_tokens: dict[str, str] | None = None,
        eos_ids: Iterable[int] = (),
        reasoning: ReasoningFormat | None = None,
    ) -> None:
        """`special_tokens`: the variables `bos_token`, `eos_token` and so on."""
        self._vocabulary = vocabulary
        self._template = template
        self._tool_template = tool_template or template
        self._special_tokens = dict(special_tokens or {})
        self._reasoning = reasoning
        self._encoder = TextEncoder(vocabulary)
        self._marks = unused_marks(self._own_texts)
        self._spellings = self._spellings_with(self._marks)
        self._stop_ids = tuple(dict.fromkeys([*eos_ids, *self._turn_end()]))

    @property
    def template(self) -> str:
        """The template's source."""
        return self._template.source

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids that no user's text can become."""
        return frozenset(control.id for control in self._vocabulary.controls)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    @property
    def oddities(self) -> frozenset[str]:
        return frozenset(ODDITIES)

    def render(self, conversation: Conversation, *, scope: str) -> Prompt:  # noqa: ARG002 it remembers nothing
        shows_tools = bool(conversation.tools) and conversation.tool_choice.mode is not ToolChoiceMode.NONE
        template = self._tool_template if shows_tools else self._template
        shown = request.variables(conversation, template)
        grammar = _grammar(conversation.response_format)
        spellings = self._spellings_for(shown)
        rendered = self._rendered(template, shown, spellings.user)
        ids = self._ids(list(spellings.cut(rendered)))
        return Prompt(
            ids=ids.astype("<u4").tobytes(),
            start=self._start(rendered),
            billed_tokens=len(ids),
            stop_ids=self._stop_ids,
            grammar=grammar,
        )

    def segments(self, conversation: Conversation) -> list[PromptSegment]:
        """Cut at the control tokens: what stands between two of them was encoded as one text."""
        controls = self.control_ids
        ids = np.frombuffer(self.render(conversation, scope="").ids, "<u4").tolist()
        segments: list[PromptSegment] = []
        for control, run in groupby(ids, lambda token: token if token in controls else None):
            of_run = tuple(run)
            if control is None:
                text = b"".join(self.token_text(token)[1] for token in of_run).decode("utf-8", "replace")
                segments.append(PromptSegment("text", text, of_run))
            else:
                segments.append(PromptSegment("control", self.token_text(control)[0] * len(of_run), of_run))
        return segments

    def cache_size(self) -> None:
        return None

    def decoder(self, prompt: Prompt, *, stop: Sequence[str] = ()) -> TextDecoder:
        """Raises FrontendError for a stop string that is empty or not text."""
        for i, string in enumerate(stop):
            request.check_text(string, f"stop[{i}]")
            if not string:
                raise FrontendError("a stop string must not be empty", param=f"stop[{i}]")
        return TextDecoder(
            self._vocabulary.table,
            start=prompt.start,
            stop=stop,
            hidden_ids=frozenset(prompt.stop_ids),
            reasoning=self._reasoning,
        )

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        return self._vocabulary.table.token_text(token_id)

    @cached_property
    def _own_texts(self) -> tuple[str, ...]:
        return (
            self._template.source,
            self._tool_template.source,
            *(control.content for control in self._vocabulary.controls),
            *self._special_tokens.values(),
        )

    def _spellings_with(self, marks: tuple[str, str]) -> Spellings:
        markers = (self._reasoning.opener, self._reasoning.closer) if self._reasoning else ()
        return Spellings(self._vocabulary.controls, reserved=markers, marks=marks)

    def _spellings_for(self, shown: dict[str, Any]) -> Spellings:
        """Nearly always the frontend's own; a request that holds one of its marks gets others."""
        texts = [text for text in request.strings(shown) if not text.isascii()]
        if not any(mark in text for text in texts for mark in self._marks):
            return self._spellings
        try:
            return self._spellings_with(unused_marks([*texts, *self._own_texts]))
        except LookupError:
            raise FrontendError("the text uses every private-use character", param="messages") from None

    def _rendered(self, template: ChatTemplate, shown: dict[str, Any], user: Callable[[Any], Any]) -> str:
        roles = [message["role"] for message in shown["messages"]]
        marked = {key: user(value) for key, value in shown.items()}
        for message, role in zip(marked["messages"], roles, strict=True):
            message["role"] = role
        return template.render({**self._special_tokens, **marked, "add_generation_prompt": True}, user)

    def _ids(self, pieces: list[Piece]) -> "np.ndarray[Any, np.dtype[np.uint32]]":
        texts = [piece for piece in pieces if piece.control_id is None]
        at_start = bool(texts) and texts[0].at_start
        encoded = iter(self._encoder.encode([piece.text for piece in texts], at_start=at_start))
        parts = [
            next(encoded) if piece.control_id is None else np.array([piece.control_id], dtype=np.uint32)
            for piece in pieces
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)

    def _start(self, rendered: str) -> Channel:
        """What the template left open. A user's marker is broken, so it does not count."""
        if self._reasoning is not None and rendered.rstrip().endswith(self._reasoning.opener):
            return Channel.THINK
        return Channel.RESPONSE

    def _turn_end(self) -> list[int]:
        """The control token that the template puts behind an assistant's message, found by rendering one."""
        messages = [_said(Role.USER, _PROBE), _said(Role.ASSISTANT, _PROBE)]
        try:
            shown = request.variables(Conversation(tuple(messages)), self._template)
            shown |= self._special_tokens | {"add_generation_prompt": False}
            rendered = self._template.render(shown, self._spellings.user)
        except FrontendError:
            return []
        after = self._spellings.cut(rendered[rendered.rfind(_PROBE) :])
        return [piece.control_id for piece in after if piece.control_id is not None][:1]


def _said(role: Role, text: str) -> Message:
    return Message(role, (Text(text),))


def _grammar(wanted: ResponseFormat) -> GrammarRequest | None:
    match wanted.kind:
        case ResponseFormatKind.TEXT:
            return None
        case ResponseFormatKind.JSON_OBJECT:
            return GrammarRequest(wanted.kind.value)
        case ResponseFormatKind.JSON_SCHEMA:
            schema = dict(wanted.schema or {})
            param = "response_format.json_schema.schema"
            try:
                for text in request.strings(schema):
                    request.check_text(text, param)
                return GrammarRequest(wanted.kind.value, json.dumps(schema, ensure_ascii=False))
            except RecursionError:
                raise FrontendError("the schema is nested too deeply", param=param) from None
