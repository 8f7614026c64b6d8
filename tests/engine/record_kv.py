"""Record what vLLM's prefix cache does: cached tokens and KV events, request by request.

    python tests/engine/record_kv.py [NAME ...]

Runs the real engine in this process on tiny models made from their configs alone (random weights), over
scripted conversations (siblings that share a prefix, turns, repeats) and random ones, one request at a time, with
a cache so small that it evicts all the time. Writes one JSON file a scenario into `recordings/`.

- Prompts are recipes (see `recipes.py`), so a recording holds no prompt ids; outputs are stored, since they
  depend on the engine's arithmetic.
- Events are normalised: a hash is the number of its first appearance in the recording; runs that name no block
  are left out.
"""

import json
import os
import sys
import tempfile
import zlib
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="WARNING",
)

import numpy as np
from recipes import SCENARIOS, Scenario, conversations, expand

RECORDINGS = Path(__file__).parent / "recordings"

_BASE = {
    "vocab_size": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "num_attention_heads": 4,
    "head_dim": 64,
    "rope_theta": 10000.0,
}
MODELS = {
    "llama": _BASE
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
    "qwen3_next": _BASE
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
        "partial_rotary_factor": 0.25,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    },
}


def record(scenario: Scenario) -> dict:
    from vllm import LLM, SamplingParams
    from vllm.v1.core.block_pool import BlockPool

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODELS[scenario.model]))
        engine = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=True,
            max_num_seqs=4,
            max_model_len=scenario.max_model_tokens,
            max_num_batched_tokens=scenario.batched_tokens,
            num_gpu_blocks_override=scenario.blocks,
            kv_cache_memory_bytes=64 << 20,
            disable_log_stats=False,
            kv_events_config={"enable_kv_cache_events": True, "publisher": "null"},
            **scenario.engine_args,
        )
    core = engine.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    gathered: list = []
    take = BlockPool.take_events

    def tap(pool: BlockPool) -> list:
        events = take(pool)
        gathered.extend(events)
        return events

    BlockPool.take_events = tap
    preempt, preempted = scheduler._preempt_request, []

    def count_preemption(*args: object, **kwargs: object) -> None:
        preempted.append(1)
        preempt(*args, **kwargs)

    scheduler._preempt_request = count_preemption
    groups = [
        [
            "state" if "Mamba" in type(group.kv_cache_spec).__name__ else "attention",
            group.kv_cache_spec.block_size,
        ]
        for group in scheduler.kv_cache_manager.kv_cache_config.kv_cache_groups
    ]
    names: dict = {}

    def name(block_hash: object) -> int:
        return names.setdefault(block_hash, len(names))

    def normal(event: object) -> list | None:
        kind = type(event).__name__
        if kind == "BlockRemoved":
            return ["R", event.group_idx, *[name(h) for h in event.block_hashes]]
        assert kind == "BlockStored", kind
        if not event.block_hashes:
            return None
        parent = None if event.parent_block_hash is None else name(event.parent_block_hash)
        tokens = zlib.crc32(np.asarray(event.token_ids, dtype="<u4").tobytes())
        hashes = [name(h) for h in event.block_hashes]
        return ["S", event.group_idx, event.block_size, parent, tokens, hashes]

    requests: list = []
    outputs: list = []
    prompts: list = []
    batch: list = []

    def run() -> None:
        """Send the batch and record what came of it; its events stand with its last request."""
        number = requests[-1]["batch"] + 1 if requests else 0
        sent = []
        for recipe, max_tokens in batch:
            prompt = expand(recipe, prompts, outputs)
            prompts.append(prompt)
            salted = {"cache_salt": recipe.salt} if recipe.salt else {}
            sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False)
            sent.append(({"prompt_token_ids": prompt.tolist(), **salted}, sampling))
        answers = engine.generate([p for p, _ in sent], [s for _, s in sent], use_tqdm=False)
        scheduler.kv_cache_manager.block_pool.take_events()
        for (recipe, max_tokens), answer in zip(batch, answers, strict=True):
            ids = list(answer.outputs[0].token_ids)
            outputs.append(ids)
            requests.append(
                {
                    "recipe": recipe.to_json(),
                    "batch": number,
                    "max_tokens": max_tokens,
                    "prompt_tokens": len(answer.prompt_token_ids),
                    "cached_tokens": answer.num_cached_tokens,
                    "output": ids,
                    "events": [],
                }
            )
        requests[-1]["events"] = [e for e in (normal(event) for event in gathered) if e is not None]
        gathered.clear()
        batch.clear()

    for recipe, max_tokens in conversations(scenario):
        needed = [part[1] for part in recipe.parts if part[0] != "random"]
        if len(batch) == scenario.at_once or any(number >= len(outputs) for number in needed):
            run()
        batch.append((recipe, max_tokens))
    run()
    config = {
        "groups": groups,
        "block_tokens": scheduler.block_size,
        "unit_tokens": scheduler.hash_block_size,
        "blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
        "retention_interval_tokens": scheduler.cache_config.prefix_cache_retention_interval,
        "batched_tokens": scheduler.max_num_scheduled_tokens,
        "sequences": scheduler.max_num_running_reqs,
        "max_model_tokens": scenario.max_model_tokens,
        "async_scheduling": scheduler.scheduler_config.async_scheduling,
        "preemptions": sum(preempted),
    }
    import vllm

    return {"scenario": scenario.name, "vllm": vllm.__version__, "config": config, "requests": requests}


def main(wanted: list[str]) -> None:
    for scenario in SCENARIOS:
        if wanted and scenario.name not in wanted:
            continue
        if len(wanted) != 1:  # one engine a process: its pools do not go away
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, scenario.name])
            continue
        recording = record(scenario)
        path = RECORDINGS / f"{scenario.name}.json"
        path.write_text(json.dumps(recording, separators=(",", ":")) + "\n")
        cached = sum(r["cached_tokens"] for r in recording["requests"])
        print(
            scenario.name,
            recording["config"],
            len(recording["requests"]),
            "requests",
            cached,
            "cached tokens",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
