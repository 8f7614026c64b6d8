"""The fleet's words → an engine: the one place that knows every kind."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from dayzero.config import KimiK3Options, Model, Pool, Profile
from dayzero.engine.protocol import Engine
from dayzero.engine.simulated_profile import SimulatedProfile, load_profile
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import find_vocabulary
from dayzero.serving.engines.vllm_config import VLLMConfig, cpu_environment
from dayzero.serving.engines.voice import voice_of
from dayzero.serving.k3_tokenizer import ensure_tokenizer
from dayzero.telemetry import traces_endpoint


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything a replica needs to make its engine; it crosses Ray."""

    pool: Pool
    model: Model
    profile: Profile
    folder: Path | None
    """The model's files; None for one that has none."""
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

    sim = spec.pool.sim
    voice = voice_of(spec.model.frontend, spec.folder, Path(sim.script) if sim.script else None)
    # The fleet's factor speeds time up; the engine's stretches its steps.
    return SimulatedEngine(simulated_profile(spec), voice, time_scale=1 / sim.time_scale)


def simulated_profile(spec: EngineSpec) -> SimulatedProfile:
    """The named profile, under this model's name and limit. Raises EngineStartError."""
    profile = load_profile(spec.pool.sim.performance_profile)
    limits = replace(profile.limits, max_model_tokens=spec.model.max_model_tokens)
    return msgspec.structs.replace(profile, model=spec.model.name, limits=limits)


def vllm_config(spec: EngineSpec) -> VLLMConfig:
    """In the replica's process: its environment says where spans go."""
    profile = spec.profile
    assert spec.folder is not None, "the fleet file was checked: vllm has weights"
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
        tokenizer=_grammar_tokenizer(spec),
    )


def _grammar_tokenizer(spec: EngineSpec) -> Path | None:
    """Kimi K3's own knows its specials as text, which a grammar could not tell from what only spells them."""
    frontend = spec.model.frontend
    if frontend.kind != "kimi_k3":
        return None
    named = KimiK3Options.model_validate(frontend.options).vocabulary
    source = find_vocabulary(Path(named) if named else None, spec.folder, os.environ)
    return ensure_tokenizer(spec.run_dir, load_vocabulary(source.path, origin=source.origin))
