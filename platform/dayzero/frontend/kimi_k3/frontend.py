"""The frontend of Kimi K3: implements `dayzero.frontend.protocol.ModelFrontend`."""

import re
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from dayzero.frontend.conversation import Conversation, ResponseFormat
from dayzero.frontend.errors import FrontendError
from dayzero.frontend.kimi_k3.decoder import KimiK3Decoder
from dayzero.frontend.kimi_k3.grammar import turn_grammar
from dayzero.frontend.kimi_k3.images import PATCH_LIMIT
from dayzero.frontend.kimi_k3.layout import start_of, tools_of
from dayzero.frontend.kimi_k3.oddities import Oddity
from dayzero.frontend.kimi_k3.python_json import check_text
from dayzero.frontend.kimi_k3.renderer import CACHE_BYTES, Renderer
from dayzero.frontend.kimi_k3.segments import Segment
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from dayzero.frontend.protocol import CacheSize, Expected, Prompt, PromptSegment

OPENING_TOKENS = 3
"""What opens the last channel, which usage leaves out, as the hosted API's does."""

_CALL_ID = re.compile(r"functions\..+:([0-9]{1,9})", re.DOTALL)


class KimiK3Frontend:
    """Safe to share between threads. `render` takes milliseconds to seconds, by what of a prompt is new.

    `text_characters`: as in `TurnGrammar`. `cache_bytes`: the most that is remembered of messages; the tokenizer has a bound
    of its own for texts.
    """

    def __init__(
        self,
        tokenizer: K3Tokenizer,
        *,
        image_patch_limit: int = PATCH_LIMIT,
        text_characters: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer, patch_limit=image_patch_limit, cache_bytes=cache_bytes)
        self._text_characters = text_characters

    @property
    def vocabulary(self) -> Vocabulary:
        return self._tokenizer.vocabulary

    @property
    def tokenizer(self) -> K3Tokenizer:
        return self._tokenizer

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self.vocabulary.specials.end_of_msg,)

    @property
    def oddities(self) -> frozenset[str]:
        return frozenset(map(str, Oddity))

    def render(self, conversation: Conversation, *, scope: str) -> Prompt:
        rendered = self._renderer.render(conversation, scope)
        start, expected = start_of(conversation), expected_of(conversation)
        return Prompt(
            ids=rendered.ids,
            start=start,
            billed_tokens=len(rendered.ids) // 4 - OPENING_TOKENS,
            stop_ids=self.stop_ids,
            media=rendered.media,
            grammar=turn_grammar(
                conversation, expected.tools or (), start, text_characters=self._text_characters
            ),
            expected=expected,
        )

    def written(self, conversation: Conversation) -> list[Segment]:
        """The prompt as control ids and the texts between them. Raises FrontendError naming the field."""
        return self._renderer.segments(conversation)

    def segments(self, conversation: Conversation) -> list[PromptSegment]:
        written = self.written(conversation)
        encoded = iter(self._tokenizer.encode([one for one in written if isinstance(one, str)]))
        segments: list[PromptSegment] = []
        for control, run in groupby(written, _control):
            if control is not None:
                ids = (control,) * len(list(run))
                segments.append(PromptSegment("control", self.token_text(control)[0] * len(ids), ids))
            else:
                segments += [PromptSegment("text", str(one), _unpacked(next(encoded))) for one in run]
        return segments

    def cache_size(self) -> CacheSize:
        parts = (self._renderer.cache_stats(), self._tokenizer.cache_stats())
        return CacheSize(sum(part.size_bytes for part in parts), sum(part.bound_bytes for part in parts))

    def decoder(self, prompt: Prompt, *, stop: Sequence[str] = ()) -> KimiK3Decoder:
        """Raises FrontendError for a stop string that is empty or not text."""
        for i, text in enumerate(stop):
            if not check_text(text, f"stop[{i}]"):
                raise FrontendError("a stop string must not be empty", param=f"stop[{i}]")
        return KimiK3Decoder(self.vocabulary, start=prompt.start, expected=prompt.expected, stop=stop)

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        return self.vocabulary.table.token_text(token_id)


def _control(segment: Segment) -> int | None:
    return segment if isinstance(segment, int) else None


def _unpacked(ids: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(ids, "<u4").tolist())


def expected_of(conversation: Conversation) -> Expected:
    continues = bool(conversation.messages) and conversation.messages[-1].partial
    return Expected(
        tools=tools_of(conversation),
        choice=conversation.tool_choice,
        # The rest of what a client began is no document of its own.
        response_format=ResponseFormat() if continues else conversation.response_format,
        first_call=first_call(conversation),
    )


def first_call(conversation: Conversation) -> int:
    """The number of the answer's first call: after all calls of the history, and after every number among their ids."""
    ids = [call.id for message in conversation.messages for call in message.tool_calls]
    numbers = [int(match[1]) for match in map(_CALL_ID.fullmatch, ids) if match]
    return max(len(ids), *(number + 1 for number in numbers)) if numbers else len(ids)
