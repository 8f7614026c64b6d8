"""`dayzero gateway`: a gateway alone, in the foreground, before the fleet's regions."""

import sys
from pathlib import Path

from dayzero.cli.up import default_fleet
from dayzero.config import load
from dayzero.serving import edge_gateway
from dayzero.serving.local.folders import FleetFolder

_CONNECT_S = 1.0
"""A first probe opens its connection too."""


def run(fleet_file: Path | None, *, host: str, port: int, name: str) -> int:
    fleet = load(fleet_file or default_fleet())
    run_folder = FleetFolder.default()
    run_folder.make()
    folders = edge_gateway.ensure_files(fleet, run_folder.models, _say, mark=f"{run_folder.mark}.files")
    gateway = edge_gateway.build(fleet, name, edge_gateway.EdgeFiles.of(run_folder), folders)
    regions = ", ".join(f"{line['region']} ({line['url']})" for line in gateway.status()["regions"])
    print(f"{name}: http://{host}:{port}/v1, before {regions}. Ctrl-C ends it.", flush=True)
    rules = fleet.policy.regions
    edge_gateway.serve(
        gateway,
        host,
        port,
        drain_timeout_s=fleet.policy.drain_timeout_s,
        first_probes_s=rules.probe_period_s + rules.probe_timeout_s + _CONNECT_S,
        say=_tell,
    )
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _tell(line: str) -> None:
    print(line, flush=True)
