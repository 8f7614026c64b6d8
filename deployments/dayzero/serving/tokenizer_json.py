"""The skeleton of a `tokenizer.json` for byte-level BPE, which every vocabulary here has."""

from collections.abc import Sequence
from typing import Any


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """`use_regex`: whether GPT-2's pattern cuts the text first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def byte_level_bpe(
    tokens: Sequence[str],
    *,
    pre_tokenizer: dict[str, Any],
    decoder: dict[str, Any],
    merges: Sequence[Sequence[str]] = (),
    added_tokens: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """`tokens`: in byte-level spelling, in the order of their ids. `merges`: pairs, the first to be made first."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }
