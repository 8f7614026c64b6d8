"""Tiny models and engines for the vLLM tests."""

import asyncio
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from dayzero.engine.types import EngineRequest, Sampling, TokenDelta, pack_ids
from dayzero.serving.engines.vllm import VLLMEngine
from dayzero.serving.engines.vllm_config import VLLMConfig, cpu_environment

VOCABULARY = range(3, 1024)

needs_vllm = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the engine lock is not installed"),
    pytest.mark.filterwarnings("ignore"),  # vLLM's and torch's own, at import and at work
    pytest.mark.timeout(600),  # a start takes 15 s on a quiet machine, minutes on a crowded one
]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY.stop,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
}

# 3 linear-attention layers to one of full attention: the same hybrid cache manager as Kimi K3's.
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "vocab_size": VOCABULARY.stop,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
}


def write_config(folder: Path, config: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_tiny_llama(folder: Path) -> Path:
    """Random weights, wide enough that greedy output wanders; vLLM's dummy ones repeat one token."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    hidden, inner, heads, head = 64, 128, 2, 32
    shapes = {"model.embed_tokens": (VOCABULARY.stop, hidden), "lm_head": (VOCABULARY.stop, hidden)}
    for layer in range(LLAMA["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj": (heads * head, hidden),
            f"{prefix}.self_attn.k_proj": (head, hidden),
            f"{prefix}.self_attn.v_proj": (head, hidden),
            f"{prefix}.self_attn.o_proj": (hidden, heads * head),
            f"{prefix}.mlp.gate_proj": (inner, hidden),
            f"{prefix}.mlp.up_proj": (inner, hidden),
            f"{prefix}.mlp.down_proj": (hidden, inner),
        }
    norms = ["model.norm"] + [
        f"model.layers.{layer}.{name}"
        for layer in range(LLAMA["num_hidden_layers"])
        for name in ("input_layernorm", "post_attention_layernorm")
    ]
    tensors = {
        f"{name}.weight": (torch.randn(shape, generator=generator) * 0.35).to(torch.bfloat16)
        for name, shape in shapes.items()
    } | {f"{name}.weight": torch.ones(hidden, dtype=torch.bfloat16) for name in norms}
    write_config(folder, LLAMA)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


@asynccontextmanager
async def run_dir() -> AsyncIterator[Path]:
    """A short path, as Unix sockets want; pytest's own are too long."""
    folder = Path(tempfile.mkdtemp(prefix="dz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def tiny_config(model: Path, run: Path, **changes) -> VLLMConfig:
    settings = {
        "model": model,
        "served_name": "tiny",
        "run_dir": run,
        "max_model_tokens": 2048,
        "block_tokens": 32,
        "kv_cache_bytes": 3 << 20,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "grammars": False,
        "stop_grace_s": 0.2,
    }
    return VLLMConfig(**(settings | changes))


@asynccontextmanager
async def started(config: VLLMConfig) -> AsyncIterator[VLLMEngine]:
    os.environ.update(cpu_environment())
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    engine = VLLMEngine(config)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def request(name: str, ids, *, max_tokens: int = 8, **changes) -> EngineRequest:
    sampling = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    outer = {key: changes.pop(key) for key in list(changes) if key in EngineRequest.__struct_fields__}
    return EngineRequest(
        request_id=name, prompt_ids=pack_ids(ids), sampling=Sampling(**(sampling | changes)), **outer
    )


async def collect(engine: VLLMEngine, what: EngineRequest) -> tuple[list[int], TokenDelta]:
    """All ids, and the last delta."""
    deltas = [delta async for delta in engine.generate(what)]
    return [token for delta in deltas for token in delta.token_ids], deltas[-1]


async def wait_until(condition, patience_s: float = 10.0) -> None:
    """Poll a snapshot, which has no event to await."""
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, f"not so within {patience_s:g} s"
        await asyncio.sleep(0.005)


def children() -> set[int]:
    """This process's children, less Python's own resource tracker, which lives as long as we do."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found
