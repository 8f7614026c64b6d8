"""The systems that are compared, each started here and ended by id: dayzero, a bare Serve application, plain uvicorn."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dayzero.cli.progress import ConsoleProgress
from dayzero.config import Fleet, parse
from dayzero.serving.local import ledger
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.ports import is_free
from dayzero.serving.local.probe import get
from dayzero.serving.local.region import LocalRegion
from overhead.client import Connection, Target
from overhead.cpu import Processes
from overhead.plain import PACED_MODEL

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
MAX_MODEL_TOKENS = 14_000
"""Room for 12,000 prompt tokens."""
ENGINE_PROFILE = "instant-long"
"""Takes no time, and little CPU: a prompt is one step and twelve blocks, as at K3's block size."""


@dataclass(frozen=True, slots=True)
class System:
    """One row of the tables."""

    name: str
    target: Target
    processes: Callable[[], Processes]
    """As they are now: HAProxy replaces its process whenever its configuration changes."""


@contextmanager
def running(scratch: Path) -> Iterator[tuple[list[System], Path]]:
    """All systems, the floor last, and the folder of the model's files. Whatever happens, everything is ended."""
    with ExitStack() as stack:
        port = _port(18_400)
        run = _region(stack, scratch / "dayzero", fleet(port), None)
        key = run.client_key.read_text().strip()
        systems = [System("dayzero", Target(port, "/v1/chat/completions", key), partial(_processes, run))]
        port = _port(port + 1)
        bare = partial(_processes, _region(stack, scratch / "bare", fleet(port), "overhead.bare:deploy"))
        for name, path in (("Serve, handle hop", "/handle"), ("Serve, ingress alone", "/local")):
            systems.append(System(name, Target(port, f"{path}/v1/chat/completions"), bare))
        systems.append(_uvicorn(stack, _port(port + 1)))
        asyncio.run(_check(systems))
        yield systems, run.models / "smollm2"


def fleet(port: int) -> Fleet:
    """deployments/local.yaml with the simulated engine that takes no time, and a second model that keeps a pace."""
    made = parse((ROOT / "deployments" / "local.yaml").read_text()).with_engine("sim").with_port(port)
    data = made.model_dump()
    (model,), (pool,) = data["serving"]["models"], data["serving"]["pools"]
    model["max_model_tokens"] = MAX_MODEL_TOKENS
    pool["sim"] = {"performance_profile": ENGINE_PROFILE, "time_scale": 1.0}
    # A step of one sequence takes 9 ms on the simulated hardware: half of it is PACE_S.
    paced_pool = pool | {"name": "us-east-paced", "model": PACED_MODEL, "replicas": 1}
    paced_pool["sim"] = {"performance_profile": "kimi-k3-gb300-tp8", "time_scale": 2.0}
    data["serving"]["models"] = (model, model | {"name": PACED_MODEL, "aliases": ()})
    data["serving"]["pools"] = (pool, paced_pool)
    data["infrastructure"]["regions"][0]["ray"]["logical_cpus"] += 1
    return Fleet.model_validate(data)


def _region(stack: ExitStack, folder: Path, fleet: Fleet, deploy: str | None) -> RunFolder:
    run = RunFolder(folder)
    region = LocalRegion(run, deploy) if deploy else LocalRegion(run)
    stack.callback(
        shutil.rmtree, run.short().path, ignore_errors=True
    )  # after `down`, which keeps Ray's logs
    stack.callback(region.down)
    name = fleet.infrastructure.regions[0].name
    region.up(fleet, name, fleet_name="benchmarks/overhead.py", progress=ConsoleProgress(sys.stderr))
    return run


def _processes(run: RunFolder) -> Processes:
    """Those of a region, by what they do for a request; the rest of Ray is around them."""
    processes = ledger.find(run.mark)
    parts: dict[str, list[int]] = {"HAProxy": [], "ingress": [], "replicas": []}
    around: list[int] = []
    for process in processes:
        if process.name == "haproxy":
            parts["HAProxy"].append(process.pid)
        elif process.name.startswith("ray::ServeReplica"):
            kind = "ingress" if process.name.endswith((":gateway", ":ingress")) else "replicas"
            parts[kind].append(process.pid)
        elif process.name.startswith("ray::ProxyActor"):
            parts["HAProxy"].append(process.pid)
        else:
            around.append(process.pid)
    missing = [name for name, pids in parts.items() if not pids]
    if missing:
        raise RuntimeError(f"no process found for {missing} among {[process.name for process in processes]}")
    return Processes({name: tuple(pids) for name, pids in parts.items()}, tuple(around))


def _uvicorn(stack: ExitStack, port: int) -> System:
    paths = [str(ROOT / "benchmarks"), *sys.path]
    process = subprocess.Popen(
        [sys.executable, "-m", "overhead.plain", str(port)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    deadline_s = time.monotonic() + 30
    while not get(f"http://127.0.0.1:{port}/readyz").ok:
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError("uvicorn did not start")
        time.sleep(0.1)
    target = Target(port, "/v1/chat/completions")
    return System("uvicorn", target, lambda: Processes({"ingress": (process.pid,)}))


def _port(first: int) -> int:
    return next(port for port in range(first, first + 200) if is_free(port))


async def _check(systems: list[System]) -> None:
    """Every system answers each model with all tokens that were asked for, or there is nothing to compare."""
    for system in systems:
        for model in (MODEL, PACED_MODEL):
            body = (
                f'{{"model":"{model}","stream":true,"max_tokens":8,"min_tokens":8,"ignore_eos":true,'
                '"messages":[{"role":"user","content":"Say yes."}]}'
            ).encode()
            answer = await Connection(system.target).ask(body)
            if answer.frames < 3:
                raise RuntimeError(f"{system.name} answered {model} with {answer.frames} frames")
