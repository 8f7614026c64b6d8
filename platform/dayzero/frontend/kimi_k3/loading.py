"""A model's folder to its frontend: the vocabulary, and how many patches a picture may have.

`preprocessor_config.json` gives `in_patch_limit`, at the top or in one of its objects; sources disagree about it, so an
option wins over the file, and the default is KIMI_K3's.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dayzero.frontend.errors import FrontendLoadError
from dayzero.frontend.kimi_k3.frontend import KimiK3Frontend
from dayzero.frontend.kimi_k3.images import PATCH_LIMIT
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import find_vocabulary

PREPROCESSOR = "preprocessor_config.json"
CACHE_BYTES = 320 * 1024 * 1024
"""What a frontend remembers of earlier prompts: some 60 million tokens of messages, and texts."""
TEXTS_PART = 5
"""Texts have one part in so many, messages the rest: a message that is found again asks for none of its texts."""


def load(
    model_folder: Path | None = None,
    *,
    vocabulary: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    image_patch_limit: int | None = None,
    text_characters: int | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> KimiK3Frontend:
    """Reads the vocabulary and warms the tokenizer: tenths of a second. Raises FrontendLoadError, which says what to do.

    `vocabulary`: the operator's option; without it the variable, the folder, then the one shipped here, with a warning.
    `cache_bytes`: the most that is remembered of earlier prompts.
    """
    source = find_vocabulary(vocabulary, model_folder, environ)
    texts_bytes = cache_bytes // TEXTS_PART
    words = load_vocabulary(source.path, origin=source.origin)
    tokenizer = K3Tokenizer(words, cache_bytes=texts_bytes, environ=environ)
    tokenizer.warm()
    return KimiK3Frontend(
        tokenizer,
        image_patch_limit=image_patch_limit or _patch_limit(model_folder),
        text_characters=text_characters,
        cache_bytes=cache_bytes - texts_bytes,
    )


def _patch_limit(model_folder: Path | None) -> int:
    if model_folder is None:
        return PATCH_LIMIT
    try:
        config = json.loads((model_folder / PREPROCESSOR).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return PATCH_LIMIT
    except (OSError, ValueError) as e:
        raise FrontendLoadError(f"cannot read {PREPROCESSOR}: {e}; fetch the model's again") from e
    found = _declared(config)
    if found is None:
        return PATCH_LIMIT
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise FrontendLoadError(f"`in_patch_limit` of {PREPROCESSOR} is not a positive whole number")
    return found


def _declared(config: Any) -> Any:
    if not isinstance(config, dict):
        return None
    within = [config, *(value for value in config.values() if isinstance(value, dict))]
    return next((part["in_patch_limit"] for part in within if "in_patch_limit" in part), None)
