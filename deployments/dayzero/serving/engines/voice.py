"""What a simulated engine says: plain words of the model's own vocabulary, so that its answers can be read."""

import re
from pathlib import Path
from typing import Final

import msgspec

from dayzero.engine.simulated_output import OutputVoice
from dayzero.frontend.chat_template import load

WORDS: Final = 2048
_WORD = re.compile(r" [a-z]{3,10}")


def voice_of(folder: Path) -> OutputVoice:
    """The first WORDS lower-case words of a tokenizer, and the model's own stop id. Raises FrontendLoadError."""
    frontend = load(folder)
    vocabulary = msgspec.json.decode((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
    ids = sorted(vocabulary.values())
    words = [i for i in ids if _WORD.fullmatch(frontend.token_text(i)[0])]
    return OutputVoice.of(words[:WORDS], frontend.stop_ids[0])
