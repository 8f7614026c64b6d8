"""`dayzero gateway`: a gateway alone, in the foreground, before the fleet's regions."""

import sys
from pathlib import Path

from dayzero.cli.up import default_fleet
from dayzero.config import Fleet, load
from dayzero.serving import edge_gateway
from dayzero.serving.local import kimi_k3
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.options import Options, for_region

_CONNECT_S = 1.0
"""A first probe opens its connection too."""


def run(fleet_file: Path | None, *, host: str, port: int, name: str, vocabulary: Path | None) -> int:
    path = fleet_file or default_fleet()
    fleet = load(path)
    named = kimi_k3.named_vocabulary(vocabulary, fleet)
    fleet = for_region(fleet, Options(vocabulary=named))
    run_folder = FleetFolder.default()
    run_folder.make()
    for words in _vocabularies(fleet, run_folder.models, str(path), given=named is not None):
        if words != kimi_k3.SHIPPED:  # of that one, its frontend warns
            _say(f"Kimi K3's vocabulary is {words}")
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


def _vocabularies(fleet: Fleet, models: Path, fleet_file: str, *, given: bool) -> list[str]:
    """Looked up before anything is made. Raises PreflightError."""
    regions = [region.name for region in fleet.infrastructure.regions]
    found = (
        kimi_k3.vocabulary(fleet, region, models, fleet_file=fleet_file, given=given) for region in regions
    )
    return list(dict.fromkeys(words for words in found if words is not None))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _tell(line: str) -> None:
    print(line, flush=True)
