"""VLLMConfig: how to start vLLM, as our own words; and the environment its processes want.

- Importing this imports neither vllm nor torch: `engine_args` does.
- Token ids go in and come out, so vLLM needs a tokenizer only for grammars (`grammars=False` leaves it out).
- Prefix caching and KV events are always on; logs never hold requests.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dayzero.engine.errors import EngineStartError

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

# The kernel's limit on a Unix socket's path, less vLLM's own file names (a UUID).
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME_BYTES = 37


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMConfig:
    """What to serve, and within which bounds; None leaves the choice to vLLM.

    `model`: a folder in Hugging Face's layout. `run_dir`: where this engine may make its folder of sockets; keep
    the path short. `block_tokens` is a wish: a hybrid model raises it, see `EngineInfo.cache_groups`.
    `tokenizer`: a folder with the tokenizer that grammars are compiled for; None is the model's own.
    `stop_grace_s`: how long `stop` waits for EngineCore to end by itself (about 3 s) before it is killed.
    `extra`: further arguments of vLLM's AsyncEngineArgs, by its names.
    """

    model: Path
    served_name: str
    run_dir: Path
    max_model_tokens: int | None = None
    block_tokens: int | None = None
    kv_cache_bytes: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str = "auto"
    enforce_eager: bool = False
    load_format: str = "auto"
    grammars: bool = True
    tokenizer: Path | None = None
    otlp_endpoint: str | None = None
    stop_grace_s: float = 5.0
    extra: Mapping[str, Any] = field(default_factory=dict)


def cpu_environment() -> dict[str, str]:
    """Variables for the process that starts vLLM on a CPU, to be set before vllm is imported.

    Without them vLLM pins threads to cores, starts a second process per engine, asks the hub for files, reports
    usage, and compiles C++ for ten seconds (or dies where there is no compiler) at the first request for logprobs.
    """
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def check_config(config: VLLMConfig) -> None:
    """What can be known before the seconds of a start. Raises EngineStartError."""
    if not (config.model / "config.json").is_file():
        raise EngineStartError(
            f"no model in {config.model}: it has no config.json; name a folder in Hugging Face's layout"
        )
    sockets_bytes = len(os.fsencode(config.run_dir)) + 1 + len("vllm-12345678") + _SOCKET_NAME_BYTES
    if sockets_bytes > _SOCKET_PATH_BYTES:
        raise EngineStartError(
            f"run_dir is too long for Unix sockets: {sockets_bytes} bytes with their names, "
            f"the limit is {_SOCKET_PATH_BYTES}; choose a shorter folder"
        )


def engine_args(config: VLLMConfig, *, events_endpoint: str, replay_endpoint: str) -> "AsyncEngineArgs":
    """The arguments in vLLM's own type. Raises EngineStartError for an argument it does not know."""
    from vllm.config.kv_events import KVEventsConfig  # noqa: PLC0415 - seconds, and not in every process
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415

    wished = {
        "max_model_len": config.max_model_tokens,
        "block_size": config.block_tokens,
        "kv_cache_memory_bytes": config.kv_cache_bytes,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "otlp_traces_endpoint": config.otlp_endpoint,
        "tokenizer": None if config.tokenizer is None else str(config.tokenizer),
    }
    arguments: dict[str, Any] = {
        "model": str(config.model),
        "served_model_name": config.served_name,
        "dtype": config.dtype,
        "enforce_eager": config.enforce_eager,
        "load_format": config.load_format,
        "skip_tokenizer_init": not config.grammars,
        "enable_prefix_caching": True,
        "enable_log_requests": False,
        "disable_log_stats": True,
        "kv_events_config": KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=events_endpoint,
            replay_endpoint=replay_endpoint,
        ),
    }
    arguments |= {name: value for name, value in wished.items() if value is not None}
    try:
        return AsyncEngineArgs(**(arguments | dict(config.extra)))
    except TypeError as e:
        raise EngineStartError(f"vLLM knows no such argument in `extra`: {e}") from e
