"""Which frontend a model has, and which vocabulary: the one place that knows them all."""

import hashlib
import os
from pathlib import Path

from dayzero.config import Frontend, KimiK3Options
from dayzero.frontend import chat_template, kimi_k3
from dayzero.frontend.kimi_k3.vocabulary_source import look_up
from dayzero.frontend.protocol import ModelFrontend


def load_frontend(config: Frontend, folder: Path | None) -> ModelFrontend:
    """`folder`: the model's files, where it has some. Raises FrontendLoadError."""
    match config.kind:
        case "chat_template":
            assert folder is not None, "the fleet file was checked: this frontend comes with weights"
            options = chat_template.ChatTemplateOptions(**config.options)
            return chat_template.load(folder, options)
        case "kimi_k3":
            given = KimiK3Options.model_validate(config.options)
            return kimi_k3.load(
                folder,
                vocabulary=Path(given.vocabulary) if given.vocabulary else None,
                image_patch_limit=given.image_patch_limit,
                text_characters=given.text_characters,
                cache_bytes=given.cache_bytes,
            )


def vocabulary_digest(config: Frontend, folder: Path | None) -> str:
    """The SHA-256 of the file that its tokens come from, hex: two that are equal make and read the same ids.

    Empty where there is no file. Raises FrontendLoadError.
    """
    if config.kind == "kimi_k3":
        named = KimiK3Options.model_validate(config.options).vocabulary
        path = look_up(Path(named) if named else None, folder, os.environ).path
    elif folder is not None:
        path = folder / "tokenizer.json"
    else:
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
