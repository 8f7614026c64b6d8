"""The systems that are compared, each started here and ended by id: dayzero, an edge before it, bare Serve, uvicorn."""

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
from dayzero.serving.local.fleet import LocalFleet
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.ports import is_free
from dayzero.serving.local.probe import get
from overhead import edge
from overhead.client import Connection, Target
from overhead.cpu import Processes
from overhead.plain import PACED_MODEL

DIRECT, AWAY = "dayzero", "dayzero, a region away"
EDGE_PART = "edge"
ROOT = Path(__file__).resolve().parents[2]
PATH = "/v1/chat/completions"
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
        product = fleet(port)
        run = region(stack, scratch / "dayzero", product)
        key = run.client_key.read_text().strip()
        systems = [System(DIRECT, Target(port, PATH, key), partial(_processes, run))]
        port = _port(port + 1)
        pid = stack.enter_context(edge.running(run, product, port))
        systems.append(System(AWAY, Target(port, PATH, key), partial(_with_edge, run, pid)))
        port = _port(port + 1)
        bare = partial(_processes, region(stack, scratch / "bare", fleet(port), "overhead.bare:deploy"))
        for name, path in (("Serve, handle hop", "/handle"), ("Serve, ingress alone", "/local")):
            systems.append(System(name, Target(port, path + PATH), bare))
        systems.append(_uvicorn(stack, _port(port + 1)))
        asyncio.run(_check(systems))
        yield systems, run.models / "smollm2"


def fleet(port: int) -> Fleet:
    """us-east of deployments/local.yaml, with the simulated engine that takes no time, and a second model at a pace."""
    made = parse((ROOT / "deployments" / "local.yaml").read_text()).with_engine("sim")
    data = made.with_ports({"us-east": port}).model_dump()
    data["infrastructure"]["regions"] = data["infrastructure"]["regions"][:1]
    (model,), (pool, *_) = data["serving"]["models"], data["serving"]["pools"]
    model["max_model_tokens"] = MAX_MODEL_TOKENS
    pool["sim"] = {"performance_profile": ENGINE_PROFILE, "time_scale": 1.0}
    # A step of one sequence takes 9 ms on the simulated hardware: half of it is PACE_S.
    paced_pool = pool | {"name": "us-east-paced", "model": PACED_MODEL, "replicas": 1}
    paced_pool["sim"] = {"performance_profile": "kimi-k3-gb300-tp8", "time_scale": 2.0}
    data["serving"]["models"] = (model, model | {"name": PACED_MODEL, "aliases": ()})
    data["serving"]["pools"] = (pool, paced_pool)
    data["infrastructure"]["regions"][0]["ray"]["logical_cpus"] += 1
    return Fleet.model_validate(data)


def region(stack: ExitStack, folder: Path, fleet: Fleet, deploy: str | None = None) -> FleetFolder:
    """Started as `dayzero up` starts it, and ended with the stack."""
    run = FleetFolder(folder)
    local = LocalFleet(run, deploy) if deploy else LocalFleet(run)
    name = fleet.infrastructure.regions[0].name
    stack.callback(
        shutil.rmtree, run.region(name).short().path, ignore_errors=True
    )  # after `down`, which keeps Ray's logs
    stack.callback(local.down)
    local.up(fleet, fleet_name="benchmarks/overhead.py", progress=ConsoleProgress(sys.stderr))
    return run


def _processes(run: FleetFolder) -> Processes:
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


def _with_edge(run: FleetFolder, edge_pid: int) -> Processes:
    region = _processes(run)
    return Processes({EDGE_PART: (edge_pid,), **region.parts}, region.around)


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
    return System("uvicorn", Target(port, PATH), lambda: Processes({"ingress": (process.pid,)}))


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
