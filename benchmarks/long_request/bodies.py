"""Chat requests of about so many tokens, made of this repository's text; no two seeds share a prefix beyond the start."""

import json
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import find_vocabulary

MODEL = "kimi-k3"
_ROOT = Path(__file__).resolve().parents[2]
_TURN_CHARACTERS = 8_000


@cache
def prose() -> str:
    """Code and English, about a megabyte."""
    folders = ("platform", "router", "deployments", "docs")
    files = sorted(p for one in folders for p in (_ROOT / one).rglob("*") if p.suffix in {".py", ".md"})
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def characters_per_token(vocabulary: str) -> float:
    """Of this text; what a request really has is counted by the server."""
    source = find_vocabulary(Path(vocabulary) if vocabulary else None, None, {})
    (ids,) = K3Tokenizer(load_vocabulary(source.path)).encode([prose()])
    return len(prose()) / (len(ids) // 4)


@dataclass
class Chat:
    """`kind`: `document`, one message that holds nearly all of it, or `talk`, some hundreds of turns."""

    kind: str
    characters: int
    seed: int
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        dice = random.Random(self.seed)
        characters = self.characters
        if self.kind == "document":
            parts = [_words(dice, 20_000) for _ in range(characters // 20_000 + 1)]
            text = f"Document {self.seed}.\n" + "".join(parts)[:characters]
            self.messages = [{"role": "user", "content": f"{text}\n\nWhat does it say?"}]
            return
        self.messages = [{"role": "system", "content": f"Conversation {self.seed}."}]
        while characters > 0:
            for role in ("user", "assistant"):
                self.messages.append({"role": role, "content": _words(dice, _TURN_CHARACTERS)})
                characters -= _TURN_CHARACTERS
        self.messages.append({"role": "user", "content": "What was said?"})

    def body(self, **more: Any) -> bytes:
        asked = {"model": MODEL, "messages": self.messages, "stream": True, "max_tokens": 16, **more}
        return json.dumps(asked, ensure_ascii=False).encode()

    def answered(self, message: dict[str, Any]) -> None:
        """The next turn repeats all before it."""
        self.messages += [message, {"role": "user", "content": "And what else?"}]


def _words(dice: random.Random, characters: int) -> str:
    text = prose()
    start = dice.randrange(len(text) - characters)
    return f"{dice.randrange(10**9)} {text[start : start + characters]}"
