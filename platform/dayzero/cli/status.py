"""`dayzero status`: what the gateway says, or what is left when it says nothing."""

import json
import time
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dayzero.serving.local import keys, ledger, lock
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.probe import Answer, get
from dayzero.serving.local.serve_view import ServeView
from dayzero.serving.local.state import RunState

READY, NOT_READY, NOT_RUNNING = 0, 1, 3


def show(*, as_json: bool) -> int:
    run = RunFolder.default()
    state = RunState.read(run.state)
    if state is None and (left := ledger.find(run.mark)):
        return _state_is_lost(run, left, as_json=as_json)
    if state is None or not state.processes or not state.processes[0].alive:
        return _not_running(run, state, as_json=as_json)
    key = keys.operator_key(run)
    if key is None:
        return _unreachable(run, state, Answer(0, _no_key(run)), as_json=as_json)
    answer = get(f"{state.base_url}/internal/v1/status", bearer=key)
    status = answer.json() if answer.ok else None
    if not isinstance(status, dict):
        return _unreachable(run, state, answer, as_json=as_json)
    if as_json:
        print(json.dumps(status, indent=2))
    else:
        _print_status(state, status)
    return READY if status.get("ready") else NOT_READY


def _no_key(run: RunFolder) -> str:
    return f"{run.operator_key} is missing; `make down && make up` makes a new one"


def _state_is_lost(run: RunFolder, left: list[ProcessId], *, as_json: bool) -> int:
    """Whether it serves is not known here: the file that names its port is gone."""
    holder = lock.holder(run.lock)
    phase = "unknown" if holder is None else "changing"
    if as_json:
        record = {"ready": False, "running": True, "phase": phase, "processes": _listed(left)}
        print(json.dumps(record, indent=2))
    elif holder is not None:
        print(f"Another command (process {holder.pid}) is starting or stopping this region.")
    else:
        print(f"The region's state file ({run.state}) is lost, {len(left)} of its processes still run.")
        print("`dayzero up` (in a checkout: make up) ends them and starts anew, `dayzero down` ends them.")
    return NOT_READY


def _not_running(run: RunFolder, state: RunState | None, *, as_json: bool) -> int:
    left = ledger.find(run.mark)
    if as_json:
        print(json.dumps({"ready": False, "running": False, "processes_left": len(left)}))
    elif left:
        print(
            f"The region's cluster has ended, but {len(left)} of its processes are left. `dayzero up` starts it anew,"
        )
        print("`dayzero down` clears it away.")
    elif state is not None:
        print(
            "The region's cluster has ended unasked. `dayzero up` starts it anew; why it ended may stand in"
        )
        print(f"{run.logs / 'ray-head.log'}.")
    else:
        print("Nothing runs. `dayzero up` (in a checkout: make up) starts a region.")
    return NOT_RUNNING


def _unreachable(run: RunFolder, state: RunState, answer: Answer, *, as_json: bool) -> int:
    dashboard = get(f"{state.dashboard_url}/api/serve/applications/", bearer=keys.ray_token(run))
    view = ServeView.parse(dashboard.json())
    processes = ledger.find(run.mark)
    why = answer.text if answer.status == 0 else f"it answers {answer.status}"
    if as_json:
        record: dict[str, Any] = {"ready": False, "running": True, "phase": state.phase, "gateway": why}
        record["serve"] = {"status": view.status, "replicas": view.summary()}
        record["processes"] = _listed(processes)
        print(json.dumps(record, indent=2))
        return NOT_READY
    starting = " It is starting." if state.phase == "starting" else ""
    print(f"{state.region}: the gateway at {state.base_url} gives no status ({why}).{starting}")
    if view.summary():
        print(f"Ray Serve says {view.status}: {view.summary()}")
    if view.message:
        print("\n".join(f"    {line}" for line in view.message.splitlines()[-12:]))
    table = Table("pid", "process", "for", box=SIMPLE)
    for process in processes:
        table.add_row(str(process.pid), process.name, _age(time.time() - process.create_time_s))
    Console().print(table)
    if state.phase != "starting" and answer.text != _no_key(run):
        print("It may mend itself within a minute; `dayzero up` waits for that, or starts it anew.")
    print(f"Logs: {run.logs} and {run.path / 'ray' / 'session_latest' / 'logs'}")
    return NOT_READY


def _listed(processes: list[ProcessId]) -> list[dict[str, Any]]:
    return [{"pid": process.pid, "name": process.name} for process in processes]


def _print_status(state: RunState, status: dict[str, Any]) -> None:
    console = Console()
    gateway = status.get("gateway") or {}
    word = "ready" if status.get("ready") else "not ready"
    reason = f" ({status['reason']})" if status.get("reason") and word == "not ready" else ""
    counts = f"{gateway.get('in_flight', '?')} in flight, {gateway.get('requests_total', '?')} requests"
    lines = [
        f"{status.get('region', state.region)}: {word}{reason}. {state.base_url}/v1",
        f"gateway: {counts}, up {_age(gateway.get('uptime_s'))}. Ray: {state.dashboard_url}",
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    for model in status.get("models") or []:
        table = Table(
            "replica", "doing", "requests", "cache", "prompt (cached)", "generated", "up", box=SIMPLE
        )
        for column in table.columns[2:]:
            column.justify = "right"
        for row in model.get("replicas") or []:
            table.add_row(*_cells(row))
        console.print(f"\n{model.get('model', '?')} on {state.engine}", highlight=False, markup=False)
        console.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    """One replica's line; `requests` are those running and those that wait."""
    health = str(row.get("health", "unknown"))
    doing = str(row.get("doing") or "")
    cached = _number(row.get("cached_tokens_total"))
    usage = row.get("kv_usage")
    return [
        str(row.get("replica", "?")),
        doing if health in {"ok", "unknown"} else f"{health}; {doing}",
        " + ".join(filter(None, (_number(row.get("running")), _number(row.get("waiting"))))),
        f"{usage:.0%}" if isinstance(usage, int | float) else "",
        _number(row.get("prompt_tokens_total")) + (f" ({cached})" if cached else ""),
        _number(row.get("generated_tokens_total")),
        _age(row["up_s"]) if "up_s" in row else "",
    ]


def _number(value: object) -> str:
    """Absent is not zero."""
    return f"{value:,}" if isinstance(value, int | float) else ""


def _age(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
