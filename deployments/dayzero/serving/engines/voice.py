"""What a simulated engine says, in the model's own vocabulary: plain words, or as a script has it."""

import os
from pathlib import Path

import msgspec

from dayzero.config import Frontend, KimiK3Options
from dayzero.engine.scripted import script
from dayzero.engine.scripted.voice import ScriptedVoice
from dayzero.engine.simulated_output import OutputVoice
from dayzero.engine.voice import Voice, words
from dayzero.frontend.chat_template import load
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import find_vocabulary

_CACHE_BYTES = 8 * 1024 * 1024
"""A voice repeats its markup and its script; what it makes up is not said twice."""


def voice_of(frontend: Frontend, folder: Path | None, script_file: Path | None) -> Voice:
    """`folder`: the model's files, where it has some. Raises FrontendLoadError or EngineStartError."""
    if frontend.kind == "kimi_k3":
        return _scripted(frontend, folder, script_file)
    assert folder is not None, "the fleet file was checked: this frontend comes with weights"
    return plain_voice(folder)


def _scripted(frontend: Frontend, folder: Path | None, script_file: Path | None) -> ScriptedVoice:
    named = KimiK3Options.model_validate(frontend.options).vocabulary
    source = find_vocabulary(Path(named) if named else None, folder, os.environ)
    tokenizer = K3Tokenizer(
        load_vocabulary(source.path, origin=source.origin), cache_bytes=_CACHE_BYTES, environ=os.environ
    )
    tokenizer.warm()
    return ScriptedVoice(tokenizer, script.load(script_file))


def plain_voice(folder: Path) -> OutputVoice:
    """Lower-case words of a tokenizer, and the model's own stop id. Raises FrontendLoadError."""
    frontend = load(folder)
    vocabulary = msgspec.json.decode((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
    text_ids = words((i, frontend.token_text(i)[1]) for i in sorted(vocabulary.values()))
    return OutputVoice.of(text_ids, frontend.stop_ids[0])
