"""What is checked before anything starts, and before anything that runs is ended for it.

- A start fails in its first second or not at all; one that fails leaves what runs as it was.
- What will be ended for the start gives back its memory and its ports: both count as there.
"""

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from dayzero.config import Fleet, Frontend, KimiK3Options
from dayzero.serving.local import ledger, store
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.ports import require_http_port

MB = 1_000_000
# Measured resident sizes, rounded up: Ray's own processes, a gateway, a replica without its cache.
_RAY_MB = 1_200
_GATEWAY_MB = 350
_REPLICA_MB = {"vllm": 1_500, "sim": 350}
_KIMI_K3_MB = 200  # with its own vocabulary, in each process that makes or reads its tokens
_MODEL_FILES_MB = {"vllm": 300, "sim": 10}
_LOGS_MB = 200
_SHELL_WORDS = re.compile(r"[\s|&;()<>$`\\\"'*?\[{]")


def check(
    fleet: Fleet,
    regions: Sequence[str],
    folder: FleetFolder,
    variables: Mapping[str, str] = os.environ,
    *,
    ending: Collection[str] = (),
) -> None:
    """Raises PreflightError with the first thing that this machine lacks to start all these regions.

    `ending`: the marks of the processes that will be ended before they start.
    """
    engines: set[str] = set()
    for region in regions:
        used = {pool.engine for pool in fleet.pools(region)}
        if not used:
            raise PreflightError(
                f"The fleet has no pool in the region '{region}', so it would serve nothing."
            )
        engines |= used
    require_python_path(sys.executable)
    if "vllm" in engines:
        require_engine()
    if any(fleet.region(region).redis.url is None for region in regions):
        store.binary()
    logs_mb = _LOGS_MB * len(regions)
    needs_mb = {folder.path: logs_mb + max(_MODEL_FILES_MB[engine] for engine in engines)}
    needs_mb |= {folder.region(region).short().path: logs_mb for region in regions}
    require_disk(needs_mb)
    if variables.get("DAYZERO_IGNORE_MEMORY") != "1":
        need_mb = sum(needed_memory_mb(fleet, region) for region in regions)
        require_memory(need_mb, available_memory_mb() + held_memory_mb(_processes(ending)))

    def ends(pid: int) -> bool:
        """Looks anew: HAProxy gives its port to another process of its own whenever its targets change."""
        return ProcessId.of(pid) is None or pid in {process.pid for process in _processes(ending)}

    for region in regions:
        http = fleet.region(region).http
        require_http_port(http.port, http.host, ends=ends)


def _processes(marks: Collection[str]) -> list[ProcessId]:
    return ledger.find(*marks) if marks else []


def require_python_path(executable: str) -> None:
    """Ray writes the path of its Python into a line for bash, unquoted: for its workers and its client server."""
    if _SHELL_WORDS.search(executable):
        raise PreflightError(
            f"Ray cannot start from {executable}: the path has a space, or another character that a shell takes "
            "apart. Move the checkout to a path without one, then `make up` again."
        )


def require_engine() -> None:
    missing = [name for name in ("vllm", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise PreflightError(
            f"The real engine is not installed ({', '.join(missing)} missing). In a checkout `make up` installs and "
            "starts it; `--engine sim` serves simulated answers without it."
        )


def require_disk(needs_mb: Mapping[Path, int]) -> None:
    for place, need_mb in needs_mb.items():
        folder = place
        while not folder.exists():
            folder = folder.parent
        free_mb = shutil.disk_usage(folder).free // MB
        if free_mb < need_mb:
            raise PreflightError(
                f"The disk of {place} has {free_mb:,} MB left; a start needs {need_mb:,} MB there. Free some space, or "
                "name a folder elsewhere: DAYZERO_RUN for keys, logs and model files, TMPDIR for Ray's own."
            )


def needed_memory_mb(fleet: Fleet, region: str) -> int:
    """Memory that a region takes when every replica is up, before requests; an embedded Valkey's when it is full."""
    need = _RAY_MB + fleet.region(region).ray.object_store_bytes // MB
    redis = fleet.region(region).redis
    need += redis.memory_bytes // MB if redis.url is None else 0
    pools = fleet.pools(region)
    speaks_k3 = [fleet.model_of(pool).frontend.kind == "kimi_k3" for pool in pools]
    frontends = {
        pool.model: fleet.model_of(pool).frontend for pool, k3 in zip(pools, speaks_k3, strict=True) if k3
    }
    need += fleet.serving.gateway.replicas * (_GATEWAY_MB + sum(map(_kimi_k3_mb, frontends.values())))
    for pool, k3 in zip(pools, speaks_k3, strict=True):
        cache_mb = fleet.profile(pool).kv_cache_bytes // MB if pool.engine == "vllm" else 0
        vocabulary_mb = _KIMI_K3_MB * (k3 and pool.engine == "sim")
        need += pool.replicas * (_REPLICA_MB[pool.engine] + cache_mb + vocabulary_mb)
    return need


def _kimi_k3_mb(frontend: Frontend) -> int:
    """Of a gateway, with all that it may remember of earlier prompts."""
    return _KIMI_K3_MB + KimiK3Options.model_validate(frontend.options).cache_bytes // MB


def available_memory_mb() -> int:
    """What this machine, or the container it is in, can still give."""
    available = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (
            (group / "memory.max").read_text().strip(),
            (group / "memory.current").read_text().strip(),
        )
        if limit != "max":
            available = min(available, int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return available // MB


def held_memory_mb(processes: Collection[ProcessId]) -> int:
    """What these alone hold: it is there again when they have ended."""
    held = 0
    for process in processes:
        with suppress(psutil.Error):
            held += psutil.Process(process.pid).memory_full_info().uss
    return held // MB


def require_memory(need_mb: int, available_mb: int) -> None:
    if available_mb < need_mb:
        raise PreflightError(
            f"This start needs about {need_mb:,} MB of memory and {available_mb:,} MB are available. Close something, "
            "start one region only (`--region NAME`), lower `replicas` in the fleet file, or use `--engine sim` (make up "
            "ENGINE=sim). To try all the same: DAYZERO_IGNORE_MEMORY=1."
        )
