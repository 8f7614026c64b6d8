"""A test double for Kimi K3 on a CPU: a tiny Llama with random weights and K3's vocabulary.

- It knows nothing, but it is real work for a real engine: under a grammar it speaks K3's format, token by token.
- The same seed gives the same weights.
- Without a grammar it never ends a turn, and under one only if the grammar bounds free text (`text_characters`).
"""

import json
from pathlib import Path
from typing import Any

from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from dayzero.serving.k3_tokenizer import write_tokenizer

_HIDDEN = 64
_INNER = 128
_LAYERS = 2
_HEADS = 2
_HEAD = 32
_SPREAD = 0.35  # wide enough that output wanders instead of repeating one token


def write_double(
    folder: Path, vocabulary: Vocabulary, *, seed: int = 1, max_model_tokens: int = 8192
) -> Path:
    """A folder that vLLM serves, in Hugging Face's layout; files of an older double are replaced.

    It holds config, bf16 weights (42 MB with K3's own vocabulary) and the tokenizer for grammars.
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    dice = torch.Generator().manual_seed(seed)
    tensors = {
        f"{name}.weight": (torch.randn(shape, generator=dice) * _SPREAD).to(torch.bfloat16)
        for name, shape in _shapes(vocabulary.size).items()
    } | {f"{name}.weight": torch.ones(_HIDDEN, dtype=torch.bfloat16) for name in _norms()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = _config(vocabulary, max_model_tokens)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return write_tokenizer(folder, vocabulary)


def _config(vocabulary: Vocabulary, max_model_tokens: int) -> dict[str, Any]:
    specials = vocabulary.specials
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary.size,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "max_position_embeddings": max_model_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": specials.ranks,
        "eos_token_id": specials.end_of_msg,
        "dtype": "bfloat16",
    }


def _shapes(vocabulary_size: int) -> dict[str, tuple[int, int]]:
    shapes = {"model.embed_tokens": (vocabulary_size, _HIDDEN), "lm_head": (vocabulary_size, _HIDDEN)}
    for layer in range(_LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes |= {
            f"{attention}.q_proj": (_HEADS * _HEAD, _HIDDEN),
            f"{attention}.k_proj": (_HEAD, _HIDDEN),
            f"{attention}.v_proj": (_HEAD, _HIDDEN),
            f"{attention}.o_proj": (_HIDDEN, _HEADS * _HEAD),
            f"{mlp}.gate_proj": (_INNER, _HIDDEN),
            f"{mlp}.up_proj": (_INNER, _HIDDEN),
            f"{mlp}.down_proj": (_HIDDEN, _INNER),
        }
    return shapes


def _norms() -> list[str]:
    layers = range(_LAYERS)
    kinds = ("input_layernorm", "post_attention_layernorm")
    return ["model.norm", *(f"model.layers.{layer}.{kind}" for layer in layers for kind in kinds)]
