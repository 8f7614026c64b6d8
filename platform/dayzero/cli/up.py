"""`dayzero up`: start the regions and say how to use them."""

import json
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from dayzero.cli.failure import STOPPED
from dayzero.cli.names import split
from dayzero.cli.progress import ConsoleProgress
from dayzero.config import EngineKind, Fleet, load
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.fleet import LocalFleet, Started
from dayzero.serving.local.folders import FleetFolder, checkout_folder
from dayzero.serving.local.options import Options
from dayzero.serving.local.state import RunState


def start(
    fleet_file: Path | None,
    *,
    engine: EngineKind | None,
    port: int | None,
    regions: Sequence[str] | None,
    as_json: bool,
) -> int:
    signal.signal(
        signal.SIGTERM, _interrupt
    )  # so that a start that is told to end clears away what it started
    path = fleet_file or default_fleet()
    fleet = load(path)
    names = split(regions)
    for name in names or ():
        fleet.region(name)
    folder = FleetFolder.default()
    progress = ConsoleProgress(sys.stderr if as_json else sys.stdout)
    try:
        started = LocalFleet(folder).up(
            fleet, fleet_name=str(path), progress=progress, regions=names, given=Options(engine, port)
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(STOPPED) from None
    if as_json:
        print(json.dumps(record(started, fleet, folder), indent=2))
    else:
        print(text(started, fleet, folder))
    return 0


def default_fleet() -> Path:
    checkout = checkout_folder()
    if checkout is None:
        raise PreflightError(
            "Name a fleet file: dayzero up FLEET. The one for this machine is in the repository."
        )
    return checkout / "deployments" / "local.yaml"


def models_of(fleet: Fleet, region: str) -> list[str]:
    return list(dict.fromkeys(pool.model for pool in fleet.pools(region)))


def replicas_of(fleet: Fleet, region: str) -> int:
    return sum(pool.replicas for pool in fleet.pools(region))


def record(started: Sequence[Started], fleet: Fleet, folder: FleetFolder) -> dict[str, object]:
    """The result for programs. It names the file of the key, not the key."""
    return {
        "api_key_file": str(folder.client_key),
        "ray_token_file": str(folder.ray_token),
        "regions": [_region_record(one, fleet) for one in started],
    }


def _region_record(started: Started, fleet: Fleet) -> dict[str, object]:
    state = started.state
    return {
        "region": state.region,
        "engine": state.engine,
        "models": models_of(fleet, state.region),
        "replicas": replicas_of(fleet, state.region),
        "base_url": f"{state.base_url}/v1",
        "dashboard_url": state.dashboard_url,
        "ray_address": state.ray_address,
        "store_url": state.store_url,
        "run_id": state.run_id,
        "was_running": started.was_running,
    }


def text(started: Sequence[Started], fleet: Fleet, folder: FleetFolder) -> str:
    """The result for people: every line of it can be used as it stands."""
    lines = [""]
    for one in started:
        lines += _region_lines(one, fleet, folder)
    first = started[0].state
    everywhere = ", the same in every region" if len(started) > 1 else ""
    lines += [
        f"API key  {folder.client_key.read_text().strip()}  (kept in {short(folder.client_key)}{everywhere})",
        f"Ray      asks for a token: cat {shlex.quote(short(folder.ray_token))}",
        f"Stop     {'make down' if checkout_folder() is not None else 'dayzero down'}",
        "",
        "Try it:",
        "",
        curl(first, models_of(fleet, first.region)[0], folder),
        "",
    ]
    return "\n".join(lines)


def _region_lines(started: Started, fleet: Fleet, folder: FleetFolder) -> list[str]:
    state = started.state
    head = "was already running" if started.was_running else "is ready"
    models, count = ", ".join(models_of(fleet, state.region)), replicas_of(fleet, state.region)
    here = folder.region(state.region)
    return [
        f"{state.region} {head}: {models} on {count} {'replica' if count == 1 else 'replicas'} of {state.engine}.",
        f"  API    {state.base_url}/v1",
        f"  Ray    {state.dashboard_url}",
        f"  logs   {short(here.logs)}, {short(here.path / 'ray')}/session_latest/logs",
        "",
    ]


def curl(state: RunState, model: str, folder: FleetFolder) -> str:
    """A request that works when pasted; the key comes from its file, so that it stays out of the shell's history."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {
        "model": model,
        "messages": question,
        "temperature": 0,
        "max_tokens": 64,
    }  # so that a small model keeps to it
    return (
        f"curl {state.base_url}/v1/chat/completions"
        f' -H "Authorization: Bearer $(cat {shlex.quote(short(folder.client_key))})"'
        f" -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )


def short(path: Path) -> str:
    """Relative to where the person stands when it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
