"""`dayzero status`: what each region's gateway says, or what is left when it says nothing.

- Every region of the fleet is shown that was ever started here, in the order in which they were; with names, those. One
  that was ended does not vanish: whoever looks at night must see that it is missing.
- The worst region's exit code counts.
- As JSON, an object by region: the gateway's own words, and under `local` what this machine knows.
"""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dayzero.cli.errors import UsageError
from dayzero.cli.layout import counted, table
from dayzero.cli.names import split
from dayzero.cli.region_table import age, print_region
from dayzero.errors import DayzeroError
from dayzero.serving.local import keys, ledger, lock, runs, store
from dayzero.serving.local.folders import FleetFolder, RegionFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.probe import Answer, get
from dayzero.serving.local.serve_view import ServeView
from dayzero.serving.local.short_folder import ShortFolder
from dayzero.serving.local.state import RunState

READY, NOT_READY, NOT_RUNNING = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Look:
    """What was found of one region."""

    code: int
    record: dict[str, Any]
    """For programs."""
    state: RunState | None = None
    lines: list[str] = field(default_factory=list)
    """For people, where the gateway says nothing."""
    processes: list[ProcessId] = field(default_factory=list)
    """To be shown, where they may explain it."""
    after: list[str] = field(default_factory=list)
    ended: bool = False
    """It was ended, or never started, and nothing of it is left."""


def show(*, regions: Sequence[str] = (), as_json: bool) -> int:
    """Raises UsageError where a name is no region's."""
    folder = FleetFolder.default()
    names = split(regions)
    looks = {one.name: look_at(one) for one in chosen(folder, names)}
    left = [] if names is not None else ledger.find(*runs.strays(folder))
    if as_json:
        print(json.dumps({name: look.record for name, look in looks.items()}, indent=2))
    else:
        _print({} if names is None and all(look.ended for look in looks.values()) else looks, left)
    return max((look.code for look in looks.values()), default=NOT_RUNNING)


def chosen(folder: FleetFolder, names: Sequence[str] | None) -> list[RegionFolder]:
    here = {region.name: region for region in (*folder.regions(), *runs.present(folder))}
    if names is None:
        return sorted(_without_past(here.values()), key=_place)
    unknown = [name for name in names if name not in here]
    others = [name for name in regions_of() if name not in here] if unknown else []
    for name in unknown:
        if name not in others:
            there_are = ", ".join([*(one.name for one in sorted(here.values(), key=_place)), *others])
            raise UsageError(
                f"There is no region '{name[:64]}' here"
                + (f"; there are: {there_are}." if there_are else ".")
            )
    return [folder.region(name) for name in names]


def _without_past(regions: Iterable[RegionFolder]) -> list[RegionFolder]:
    """Those that were ended are left out where the fleet that runs has them no more."""
    every = list(regions)
    files = {state.fleet_name for one in every if (state := RunState.read(one.state)) is not None}
    ended = [one for one in every if not one.state.exists() and not ledger.find(one.mark)]
    if not files or not ended:
        return every
    wanted = [regions_of(Path(file)) for file in sorted(files)]
    if not all(wanted):
        return every  # a file cannot be read: rather one too many
    return [one for one in every if one not in ended or any(one.name in names for names in wanted)]


def _place(region: RegionFolder) -> tuple[float, str]:
    """`up` starts them in the fleet's order; those that do not run come last."""
    state = RunState.read(region.state)
    return (float("inf") if state is None else state.started_at_s, region.name)


def regions_of(fleet_file: Path | None = None) -> list[str]:
    """A fleet's regions (the checkout's without a file), started or not; none where it cannot be read."""
    from dayzero.cli.up import default_fleet  # noqa: PLC0415 most looks do not need it, and answer at once
    from dayzero.config import load  # noqa: PLC0415

    with suppress(DayzeroError, OSError):
        return [region.name for region in load(fleet_file or default_fleet()).infrastructure.regions]
    return []


def look_at(folder: RegionFolder) -> Look:
    state = RunState.read(folder.state)
    left = ledger.find(folder.mark) if state is None or not state.alive else []
    if state is None and left:
        return _state_is_lost(folder, left)
    if state is None or not state.alive:
        return _not_running(folder, state, left)
    key = keys.operator_key(folder.fleet)
    if key is None:
        return _unreachable(folder, state, Answer(0, _no_key(folder)))
    answer = get(f"{state.base_url}/internal/v1/status", bearer=key)
    status = answer.json() if answer.ok else None
    if not isinstance(status, dict):
        return _unreachable(folder, state, answer)
    code = READY if status.get("ready") else NOT_READY
    return Look(code, status | {"local": _local(state)}, state)


def _local(state: RunState) -> dict[str, Any]:
    record: dict[str, Any] = {"base_url": state.base_url, "dashboard_url": state.dashboard_url}
    record["store"] = {"url": state.store_url}
    if state.vocabulary is not None:
        record["vocabulary"] = state.vocabulary
    if state.store is not None:
        short = ShortFolder(Path(state.short_folder))
        server = store.server(short)
        record["store"] |= {
            "pid": None if server is None else server.pid,
            "answers": store.answers(short.store_socket),
            "kept": state.store.alive,
        }
    return record


def _no_key(folder: RegionFolder) -> str:
    return f"{folder.fleet.operator_key} is missing; `make down && make up` makes a new one"


def _state_is_lost(folder: RegionFolder, left: list[ProcessId]) -> Look:
    """Whether it serves is not known here: the file that names its port is gone."""
    holder = lock.holder(folder.fleet.lock)
    phase = "unknown" if holder is None else "changing"
    record = {"ready": False, "running": True, "phase": phase, "processes": _listed(left)}
    if holder is not None:
        lines = [f"Another command (process {holder.pid}) is starting or stopping regions here."]
    else:
        verb = "runs" if len(left) == 1 else "run"
        lines = [
            f"its state file ({folder.state}) is lost, {len(left)} of its processes still {verb}.",
            "`dayzero up` (in a checkout: make up) ends them and starts anew, `dayzero down` ends them.",
        ]
    return Look(NOT_READY, record, lines=lines)


def _not_running(folder: RegionFolder, state: RunState | None, left: list[ProcessId]) -> Look:
    if left:
        verb = "is" if len(left) == 1 else "are"
        lines = [
            f"its cluster has ended, but {len(left)} of its processes {verb} left. `dayzero up` starts it anew,",
            "`dayzero down` clears it away.",
        ]
    elif state is not None:
        lines = [
            "its cluster has ended unasked. `dayzero up` starts it anew; why it ended may stand in",
            f"{folder.logs / 'ray-head.log'}.",
        ]
    else:
        lines = [f"does not run. `dayzero up --region {folder.name}` starts it."]
    record = {"ready": False, "running": False, "processes_left": len(left)}
    return Look(NOT_RUNNING, record, state, lines=lines, ended=state is None and not left)


def _unreachable(folder: RegionFolder, state: RunState, answer: Answer) -> Look:
    dashboard = get(f"{state.dashboard_url}/api/serve/applications/", bearer=keys.ray_token(folder.fleet))
    view = ServeView.parse(dashboard.json())
    processes = ledger.find(folder.mark)
    why = answer.text if answer.status == 0 else f"it answers {answer.status}"
    record: dict[str, Any] = {"ready": False, "running": True, "phase": state.phase, "gateway": why}
    record["serve"] = {"status": view.status, "replicas": view.summary()}
    record["processes"] = _listed(processes)
    record["local"] = _local(state)
    starting = " It is starting." if state.phase == "starting" else ""
    lines = [f"the gateway at {state.base_url} gives no status ({why}).{starting}"]
    if view.summary():
        lines.append(f"Ray Serve says {view.status}: {view.summary()}")
    if view.message:
        lines += [f"    {line}" for line in view.message.splitlines()[-12:]]
    after = []
    if state.phase != "starting" and answer.text != _no_key(folder):
        after.append("It may mend itself within a minute; `dayzero up` waits for that, or starts it anew.")
    after.append(f"Logs: {folder.logs} and {folder.path / 'ray' / 'session_latest' / 'logs'}")
    return Look(NOT_READY, record, state, lines, processes, after)


def _listed(processes: list[ProcessId]) -> list[dict[str, Any]]:
    return [{"pid": process.pid, "name": process.name} for process in processes]


def _print(looks: dict[str, Look], left: list[ProcessId]) -> None:
    for place, (name, look) in enumerate(looks.items()):
        if place:
            print(flush=True)
        if look.lines:
            print(f"{name}: " + "\n".join(look.lines), flush=True)
            if look.processes:
                _print_processes(look.processes)
            for line in look.after:
                print(line, flush=True)
        elif look.state is not None:
            print_region(look.state, look.record)
    if left:
        verb, them = ("is", "it") if len(left) == 1 else ("are", "them")
        print(
            f"{counted(len(left), 'process', 'processes')} of an earlier run {verb} left; `dayzero down` ends {them}."
        )
    elif not looks:
        print("Nothing runs. `dayzero up` (in a checkout: make up) starts the regions.")


def _print_processes(processes: list[ProcessId]) -> None:
    made = table("pid", "process", "for")
    for process in processes:
        made.add_row(str(process.pid), process.name, age(time.time() - process.create_time_s))
    Console().print(made)
