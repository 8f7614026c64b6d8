"""What a started vLLM is: read from the running engine, never from a flag."""

from math import gcd
from typing import TYPE_CHECKING, Any

from dayzero.engine.protocol import CacheGroup, EngineInfo
from dayzero.serving.engines.vllm_config import VLLMConfig
from dayzero.serving.engines.vllm_kv_wire import group_kind
from dayzero.serving.engines.vllm_requests import ModelLimits

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


async def describe(llm: "AsyncLLM", config: VLLMConfig, *, incarnation: str) -> EngineInfo:
    """EngineCore answers with its cache groups; the rest it sent back when it came up."""
    from vllm import __version__  # noqa: PLC0415 - seconds, and not in every process

    metadata = await llm.engine_core.call_utility_async("get_kv_cache_group_metadata")
    groups = tuple(_cache_group(entry) for entry in metadata)
    cache = llm.vllm_config.cache_config
    return EngineInfo(
        model=config.served_name,
        incarnation=incarnation,
        max_model_tokens=llm.vllm_config.model_config.max_model_len,
        match_unit_tokens=_match_unit_tokens(groups, cache.prefix_match_unit),
        cache_groups=groups,
        cache_blocks=cache.num_gpu_blocks,
        engine="vllm",
        engine_version=__version__,
    )


def model_limits(llm: "AsyncLLM", config: VLLMConfig) -> ModelLimits:
    model = llm.vllm_config.model_config
    vocabulary_size = model.get_vocab_size()
    return ModelLimits(
        max_model_tokens=model.max_model_len,
        vocabulary_size=vocabulary_size,
        max_logprobs=vocabulary_size if model.max_logprobs == -1 else model.max_logprobs,
        grammars=config.grammars,
    )


def _cache_group(entry: dict[str, Any]) -> CacheGroup:
    return CacheGroup(
        group=entry["group_idx"], kind=group_kind(entry["kind"]), block_tokens=entry["block_size"]
    )


def _match_unit_tokens(groups: tuple[CacheGroup, ...], configured: int | None) -> int:
    """The step of a prefix hit, as vLLM 0.32 resolves it (`resolve_kv_cache_block_sizes`).

    With one group its block; with several what was configured, else the greatest common divisor of their blocks.
    """
    if len(groups) > 1 and configured is not None:
        return configured
    return gcd(*(group.block_tokens for group in groups))
