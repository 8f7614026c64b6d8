"""A `tokenizer.json`, read for three purposes: its control tokens, its ids' bytes, and a copy that knows text only.

- A control token is an added token, unless it is nothing but white space and not special (runs of spaces in
  GPT-NeoX vocabularies are text). Qwen's `<think>`, not special, is one: a user's `<think>` stays text.
- Hidden from output are the special ones only, as Hugging Face's `skip_special_tokens` hides them.
- Byte-level BPE and SentencePiece-style BPE (`▁` for a space, bytes as `<0x0A>`) are understood; anything else is
  refused by name. Text is never unknown: a byte that a byte-level vocabulary has no token for is left out, as
  Hugging Face leaves it out (SmolLM2 has none for 21 bytes, U+0004 among them); that is logged.
- SentencePiece cannot tell `▁` in a text from a space, and decodes it as one.
- In the text-only copy no control token can be reached: not as an added token, not as a word of the model.
"""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dayzero.frontend.byte_level import CHARACTERS
from dayzero.frontend.chat_template.spellings import ControlToken
from dayzero.frontend.detokenizer import TokenTable
from dayzero.frontend.errors import FrontendLoadError

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_log = logging.getLogger(__name__)
_NONCHARACTER = "\ufdd0"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`text_json` is the copy that encodes text; `later_json` the one for text that is not the prompt's first."""

    controls: tuple[ControlToken, ...] = field(repr=False)
    table: TokenTable
    text_json: str = field(repr=False)
    later_json: str = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.table.spelled)


def read(path: Path) -> Vocabulary:
    """Raises FrontendLoadError: no such file, not a tokenizer, or of a kind that is not understood."""
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        return parse(tokenizer)
    except OSError as e:
        raise FrontendLoadError(
            f"cannot read {path.name}: {e.strerror}; the model's folder must hold one"
        ) from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FrontendLoadError(f"{path.name} is not a Hugging Face tokenizer: {type(e).__name__} {e}") from e


def parse(tokenizer: dict[str, Any]) -> Vocabulary:
    model = tokenizer["model"]
    if model.get("type") != "BPE":
        raise FrontendLoadError(
            f"tokenizer model {model.get('type')} is not supported: only BPE (byte-level or SentencePiece-style) is"
        )
    if model.get("dropout"):
        raise FrontendLoadError("the tokenizer has BPE dropout: its ids would differ from call to call")
    added = tokenizer.get("added_tokens") or []
    controls = tuple(_control(token) for token in added if not _is_text(token))
    table = _table(tokenizer, added)
    text_only = _text_only(tokenizer, controls)
    later = dict(text_only, pre_tokenizer=_not_first(text_only.get("pre_tokenizer")))
    return Vocabulary(controls, table, json.dumps(text_only), json.dumps(later))


def _is_text(token: dict[str, Any]) -> bool:
    return not token.get("special") and not token["content"].strip()


def _control(token: dict[str, Any]) -> ControlToken:
    return ControlToken(
        id=token["id"],
        content=token["content"],
        special=bool(token.get("special")),
        lstrip=bool(token.get("lstrip")),
        rstrip=bool(token.get("rstrip")),
        single_word=bool(token.get("single_word")),
    )


def _table(tokenizer: dict[str, Any], added: list[dict[str, Any]]) -> TokenTable:
    steps = _steps(tokenizer.get("decoder"))
    kinds = {step["type"] for step in steps}
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    if "ByteLevel" in kinds:
        spell, strip = _byte_level_speller(vocab), False
    elif tokenizer["model"].get("byte_fallback") and ("ByteFallback" in kinds or "Metaspace" in kinds):
        spell, strip = _sentencepiece_speller(vocab), any(_strips_a_space(step) for step in steps)
    else:
        raise FrontendLoadError(
            f"tokenizer decoder {'+'.join(sorted(kinds)) or 'none'} is not supported: "
            "only ByteLevel, or Metaspace with ByteFallback, is"
        )
    size = 1 + max([*vocab.values(), *(token["id"] for token in added)])
    spelled = [b""] * size
    for word, word_id in vocab.items():
        spelled[word_id] = spell(word)
    visible = list(spelled)
    for token in added:
        content: bytes = token["content"].encode()
        spelled[token["id"]] = content
        visible[token["id"]] = b"" if token.get("special") else content
    return TokenTable(tuple(visible), tuple(spelled), strip_leading_space=strip)


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A decoder or pre-tokenizer as the list of its steps."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [
            step
            for child in part.get("decoders") or part.get("pretokenizers") or []
            for step in _steps(child)
        ]
    return [part]


def _strips_a_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step.get("content") == " " and step.get("start"))
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    return bool(step["type"] == "Metaspace" and scheme != "never")


def _byte_level_speller(vocab: dict[str, int]) -> Callable[[str], bytes]:
    alphabet = {character: byte for byte, character in enumerate(CHARACTERS)}
    missing = [f"{byte:02x}" for character, byte in alphabet.items() if character not in vocab]
    if missing:
        _log.info("the vocabulary has no token for the bytes %s; text loses them", " ".join(missing))

    def spell(token: str) -> bytes:
        if all(c in alphabet for c in token):
            return bytes(alphabet[c] for c in token)
        return token.encode()

    return spell


def _sentencepiece_speller(vocab: dict[str, int]) -> Callable[[str], bytes]:
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocab]
    if missing:
        raise FrontendLoadError(
            f"the tokenizer falls back to bytes but has no token for {len(missing)} of them"
        )

    def spell(token: str) -> bytes:
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte.group(1), 16)])
        return token.replace(_SPACE, " ").encode()

    return spell


def _text_only(tokenizer: dict[str, Any], controls: tuple[ControlToken, ...]) -> dict[str, Any]:
    """The tokenizer without its control tokens. In the model they are renamed, because ids must stay without gaps."""
    model = tokenizer["model"]
    contents = {c.content for c in controls}
    vocab = {
        (f"{_NONCHARACTER}{token_id}" if token in contents else token): token_id
        for token, token_id in model["vocab"].items()
    }
    merges = [merge for merge in model["merges"] if not _touches(merge, contents)]
    return {
        **tokenizer,
        "added_tokens": [t for t in tokenizer.get("added_tokens") or [] if t["content"] not in contents],
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "model": {**model, "vocab": vocab, "merges": merges, "unk_token": None},
    }


def _touches(merge: str | list[str], contents: set[str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in contents or right in contents or left + right in contents


def _not_first(pre_tokenizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The pre-tokenizer for text behind a control token: Metaspace's scheme `first` adds no space there."""
    if pre_tokenizer is None:
        return None
    if pre_tokenizer["type"] == "Sequence":
        return {**pre_tokenizer, "pretokenizers": [_not_first(p) for p in pre_tokenizer["pretokenizers"]]}
    if pre_tokenizer["type"] == "Metaspace" and pre_tokenizer.get("prepend_scheme") == "first":
        return {**pre_tokenizer, "prepend_scheme": "never"}
    return pre_tokenizer
