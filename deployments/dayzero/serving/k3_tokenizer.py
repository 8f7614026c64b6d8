"""Kimi K3's vocabulary as the `tokenizer.json` that vLLM compiles grammars for.

- It decodes: every text id is its bytes, code points cut in half included. It does not encode (there are no merges);
  nothing does, since token ids go in and come out.
- A special id has a text that no grammar can match: its name after the byte 0xFF, which is in no UTF-8. So a special
  stands only where a grammar names its id, never in a string or in free text that happens to spell it.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from dayzero.frontend.byte_level import CHARACTERS
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from dayzero.serving.tokenizer_json import byte_level, byte_level_bpe

TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json")

_NO_UTF8 = b"\xff"
_MODEL_MAX_TOKENS = 1_048_576


def write_tokenizer(folder: Path, vocabulary: Vocabulary) -> Path:
    """`TOKENIZER_FILES` into an existing folder."""
    names = _spellings(vocabulary)
    specials = vocabulary.specials
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names[specials.end_of_msg],
        "model_max_length": _MODEL_MAX_TOKENS,
        "clean_up_tokenization_spaces": False,
    }
    plain = byte_level(use_regex=False)
    _write(folder / "tokenizer.json", byte_level_bpe(names, pre_tokenizer=plain, decoder=plain))
    _write(folder / "tokenizer_config.json", config)
    return folder


def ensure_tokenizer(parent: Path, vocabulary: Vocabulary) -> Path:
    """A folder in `parent` with this vocabulary's tokenizer, made once for all engines that start beside each other."""
    folder = parent / f"k3-tokenizer-{vocabulary.digest[:12]}"
    if not folder.is_dir():
        parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".k3-tokenizer-", dir=parent))
        write_tokenizer(fresh, vocabulary)
        try:
            fresh.rename(folder)
        except OSError:  # another was faster
            shutil.rmtree(fresh)
    return folder


def _spellings(vocabulary: Vocabulary) -> list[str]:
    """Every id in byte-level form: one character for each byte."""
    texts = [b""] * vocabulary.specials.ranks
    for token, rank in vocabulary.ranks.items():
        texts[rank] = token
    texts += [_NO_UTF8 + name.encode() for _, name in sorted(vocabulary.specials.names().items())]
    return ["".join(CHARACTERS[byte] for byte in text) for text in texts]


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
