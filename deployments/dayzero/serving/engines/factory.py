"""The fleet's words → an engine: the one place that knows every kind."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from dayzero.config import Model, Pool, Profile
from dayzero.engine.protocol import Engine
from dayzero.engine.simulated_profile import SimulatedProfile, load_profile
from dayzero.serving.engines.vllm_config import VLLMConfig, cpu_environment
from dayzero.serving.engines.voice import voice_of
from dayzero.telemetry import traces_endpoint


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything a replica needs to make its engine; it crosses Ray."""

    pool: Pool
    model: Model
    profile: Profile
    folder: Path
    run_dir: Path
    store_url: str = field(repr=False)
    """The region's Valkey; it may hold a password."""


def engine_environment(spec: EngineSpec) -> dict[str, str]:
    """Variables of the replica's process, set before anything is imported in it."""
    if spec.pool.engine == "vllm":
        return cpu_environment() | {
            "OMP_NUM_THREADS": str(spec.profile.threads),
            # Ours, and not vLLM's own default.
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        }
    return {"OMP_NUM_THREADS": "1"}


def make_engine(spec: EngineSpec) -> Engine:
    """Not started yet. Imports what the kind needs, and no more."""
    if spec.pool.engine == "vllm":
        from dayzero.serving.engines.vllm import VLLMEngine  # noqa: PLC0415  # seconds of imports

        return VLLMEngine(vllm_config(spec))
    from dayzero.serving.engines.sim import SimulatedEngine  # noqa: PLC0415

    # The fleet's factor speeds time up; the engine's stretches its steps.
    return SimulatedEngine(
        simulated_profile(spec), voice_of(spec.folder), time_scale=1 / spec.pool.sim.time_scale
    )


def simulated_profile(spec: EngineSpec) -> SimulatedProfile:
    """The named profile, under this model's name and limit. Raises EngineStartError."""
    profile = load_profile(spec.pool.sim.performance_profile)
    limits = replace(profile.limits, max_model_tokens=spec.model.max_model_tokens)
    return msgspec.structs.replace(profile, model=spec.model.name, limits=limits)


def vllm_config(spec: EngineSpec) -> VLLMConfig:
    """In the replica's process: its environment says where spans go."""
    profile = spec.profile
    return VLLMConfig(
        model=spec.folder,
        served_name=spec.model.name,
        run_dir=spec.run_dir,
        max_model_tokens=spec.model.max_model_tokens,
        block_tokens=profile.block_tokens,
        kv_cache_bytes=profile.kv_cache_bytes,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        dtype=profile.dtype,
        enforce_eager=profile.enforce_eager,
        otlp_endpoint=traces_endpoint(os.environ),
    )
