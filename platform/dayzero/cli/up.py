"""`dayzero up`: start one region and say how to use it."""

import json
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

from dayzero.cli.failure import STOPPED
from dayzero.cli.progress import ConsoleProgress
from dayzero.config import EngineKind, Fleet, load
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.folders import RunFolder, checkout_folder
from dayzero.serving.local.region import LocalRegion, Started
from dayzero.serving.local.state import RunState


def start(
    fleet_file: Path | None, *, engine: EngineKind | None, port: int | None, region: str | None, as_json: bool
) -> int:
    signal.signal(
        signal.SIGTERM, _interrupt
    )  # so that a start that is told to end clears away what it started
    path = fleet_file or default_fleet()
    fleet = load(path)
    name = region or fleet.infrastructure.regions[0].name
    fleet.region(name)
    if engine is not None:
        fleet = fleet.with_engine(engine)
    if port is not None:
        fleet = fleet.with_port(port, name)

    run = RunFolder.default()
    progress = ConsoleProgress(sys.stderr if as_json else sys.stdout)
    try:
        started = LocalRegion(run).up(fleet, name, fleet_name=str(path), progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(STOPPED) from None
    if as_json:
        print(json.dumps(record(started, fleet, run), indent=2))
    else:
        print(text(started, fleet, run))
    return 0


def default_fleet() -> Path:
    checkout = checkout_folder()
    if checkout is None:
        raise PreflightError(
            "Name a fleet file: dayzero up FLEET. The one for this machine is in the repository."
        )
    return checkout / "deployments" / "local.yaml"


def models_of(fleet: Fleet, state: RunState) -> list[str]:
    return list(dict.fromkeys(pool.model for pool in fleet.pools(state.region)))


def record(started: Started, fleet: Fleet, run: RunFolder) -> dict[str, object]:
    """The result for programs. It names the file of the key, not the key."""
    state = started.state
    return {
        "region": state.region,
        "engine": state.engine,
        "models": models_of(fleet, state),
        "replicas": sum(pool.replicas for pool in fleet.pools(state.region)),
        "base_url": f"{state.base_url}/v1",
        "api_key_file": str(run.client_key),
        "dashboard_url": state.dashboard_url,
        "ray_token_file": str(run.ray_token),
        "ray_address": state.ray_address,
        "run_id": state.run_id,
        "was_running": started.was_running,
    }


def text(started: Started, fleet: Fleet, run: RunFolder) -> str:
    """The result for people: every line of it can be used as it stands."""
    state = started.state
    models = models_of(fleet, state)
    count = sum(pool.replicas for pool in fleet.pools(state.region))
    head = "was already running" if started.was_running else "is ready"
    stop = "make down" if checkout_folder() is not None else "dayzero down"
    lines = [
        "",
        f"{state.region} {head}: {', '.join(models)} on {count} replicas of {state.engine}.",
        "",
        f"  API        {state.base_url}/v1",
        f"  API key    {run.client_key.read_text().strip()}  (kept in {short(run.client_key)})",
        f"  Ray        {state.dashboard_url}  (it asks for a token: cat {shlex.quote(short(run.ray_token))})",
        f"  logs       {short(run.logs)}, {short(run.path / 'ray')}/session_latest/logs",
        f"  stop       {stop}",
        "",
        "Try it:",
        "",
        curl(state, models[0], run),
        "",
    ]
    return "\n".join(lines)


def curl(state: RunState, model: str, run: RunFolder) -> str:
    """A request that works when pasted; the key comes from its file, so that it stays out of the shell's history."""
    body = {"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    return (
        f"curl {state.base_url}/v1/chat/completions"
        f' -H "Authorization: Bearer $(cat {shlex.quote(short(run.client_key))})"'
        f" -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )


def short(path: Path) -> str:
    """Relative to where the person stands when it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
