"""Prompts: real English text, cut to a number of tokens; no two of a run are equal.

- The text is the Python reference that every interpreter carries (`pydoc_data.topics`), its paragraphs in a random
  order, so that words repeat as in any text and passages do not.
- A body is made from parts that were encoded before, so that the client costs little while others are measured.
"""

import itertools
import random
import re
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import msgspec

from dayzero.frontend.chat_template import vocabulary
from dayzero.frontend.chat_template.text_encoder import TextEncoder

_TEMPLATE_TOKENS = 40
"""What the chat template and the numbered first sentence add, about."""


@dataclass(slots=True)
class Prompts:
    """An endless supply of prompts of about `tokens` tokens, from `texts` different ones with a number in front."""

    tokens: int
    texts: list[bytes]
    _numbers: "itertools.count[int]"

    @classmethod
    def make(cls, folder: Path, tokens: int, count: int, seed: int) -> "Prompts":
        encoder = TextEncoder(vocabulary.read(folder / "tokenizer.json"))
        dice = random.Random(seed)
        paragraphs = [
            p for topic in topics.topics.values() for p in re.split(r"\n\s*\n", topic) if len(p) > 80
        ]
        texts = [_cut(encoder, paragraphs, dice, tokens - _TEMPLATE_TOKENS) for _ in range(count)]
        return cls(tokens, [msgspec.json.encode(text)[1:-1] for text in texts], itertools.count())

    def body(self, model: str, answer_tokens: int) -> bytes:
        """A `chat.completions` body whose answer is streamed and has exactly so many tokens."""
        number = next(self._numbers)
        text = self.texts[number % len(self.texts)]
        return (
            (
                f'{{"model":"{model}","stream":true,"temperature":0,"ignore_eos":true,"max_tokens":{answer_tokens},'
                f'"min_tokens":{answer_tokens},"messages":[{{"role":"user","content":"Question {number}: what does this say? '
            ).encode()
            + text
            + b'"}]}'
        )


def _cut(encoder: TextEncoder, paragraphs: list[str], dice: random.Random, tokens: int) -> str:
    parts: list[str] = []
    size = 0
    while size < tokens * 6:  # characters: more than enough
        parts.append(dice.choice(paragraphs))
        size += len(parts[-1])
    text = "\n\n".join(parts)
    for _ in range(3):  # characters to a token differ along the text: come closer
        have = len(encoder.encode([text])[0])
        if have <= tokens:
            break
        text = text[: len(text) * tokens // have]
    return text
