"""`dayzero up`: start the regions and say how to use them."""

import json
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from dayzero.cli.failure import STOPPED
from dayzero.cli.names import split
from dayzero.cli.progress import ConsoleProgress
from dayzero.config import EngineKind, Fleet, load
from dayzero.serving.local import kimi_k3
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
    vocabulary: Path | None,
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
    given = Options(engine, port, kimi_k3.named_vocabulary(vocabulary, fleet))
    folder = FleetFolder.default()
    progress = ConsoleProgress(sys.stderr if as_json else sys.stdout)
    try:
        started = LocalFleet(folder).up(
            fleet, fleet_name=str(path), progress=progress, regions=names, given=given
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
        "vocabulary": state.vocabulary,
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
    ]
    for model in _to_try(fleet, first.region):
        lines += [curl(first, model, folder), ""]
    if fleet.speaks_k3:
        lines += _vocabulary_lines([one.state for one in started], fleet)
    return "\n".join(lines)


def _to_try(fleet: Fleet, region: str) -> list[str]:
    """The region's first model, and its first of Kimi K3's kind where that is another."""
    pools = fleet.pools(region)
    k3 = [pool.model for pool in pools if fleet.model_of(pool).frontend.kind == "kimi_k3"]
    return list(dict.fromkeys([pools[0].model, *k3[:1]]))


def _vocabulary_lines(states: Sequence[RunState], fleet: Fleet) -> list[str]:
    """Each vocabulary once; beside the small one, how to name another."""
    used = dict.fromkeys(state.vocabulary for state in states if state.vocabulary is not None)
    lines = [f"Kimi K3's vocabulary: {words}" for words in used]
    if kimi_k3.SHIPPED in used:
        lines += ["To start with the model's own:", "", _again(states, fleet)]
    return [*lines, ""] if lines else []


def _again(states: Sequence[RunState], fleet: Fleet) -> str:
    """The same start with another vocabulary; what it was told beside that stays with its regions."""
    path, file = f"/path/to/{kimi_k3.FILE_NAME}", states[0].fleet_name
    regions = [state.region for state in states]
    some = shlex.quote(",".join(regions)) if len(regions) < len(fleet.infrastructure.regions) else ""
    if (checkout := checkout_folder()) is None:
        return f"dayzero up {shlex.quote(file)}{f' --region {some}' if some else ''} --vocabulary {path}"
    other = Path(file).resolve() != (checkout / "deployments" / "local.yaml").resolve()
    named = f"{f' FLEET={shlex.quote(file)}' if other else ''}{f' REGION={some}' if some else ''}"
    return f"make up{named} VOCABULARY={path}"


def _region_lines(started: Started, fleet: Fleet, folder: FleetFolder) -> list[str]:
    state = started.state
    head = "was already running" if started.was_running else "is ready"
    here = folder.region(state.region)
    return [
        f"{state.region} {head}: {', '.join(_served(state, fleet))}.",
        f"  API    {state.base_url}/v1",
        f"  Ray    {state.dashboard_url}",
        f"  logs   {short(here.logs)}, {short(here.path / 'ray')}/session_latest/logs",
        "",
    ]


def _served(state: RunState, fleet: Fleet) -> Iterator[str]:
    """Each pool of a region; those whose model has weights run on the engine that the region was started with."""
    for pool in fleet.pools(state.region):
        engine = pool.engine if fleet.model_of(pool).weights.source == "none" else state.engine
        replicas = f"{pool.replicas} {'replica' if pool.replicas == 1 else 'replicas'}"
        yield f"{pool.model} on {replicas} of {engine}"


def curl(state: RunState, model: str, folder: FleetFolder) -> str:
    """A request that works when pasted; the key comes from its file, so that it stays out of the shell's history."""
    question = [{"role": "user", "content": "Say hello in one short sentence."}]
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
