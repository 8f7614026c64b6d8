"""`dayzero down`: stop what runs, and say what was stopped."""

import json
from collections import Counter
from collections.abc import Sequence

from dayzero.cli.names import split
from dayzero.serving.local.fleet import LocalFleet
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.store import KEEPER, SERVER


def stop(*, regions: Sequence[str] | None, as_json: bool) -> int:
    ended = LocalFleet(FleetFolder.default()).down(split(regions))
    if as_json:
        record = [{"pid": process.pid, "name": process.name} for process in ended]
        print(json.dumps({"ended": record}, indent=2))
        return 0
    if not ended:
        print("Nothing was running.")
        return 0
    counts = Counter(kind(process.name) for process in ended)
    print(
        f"Ended {len(ended)} processes: {', '.join(f'{count} of {name}' for name, count in counts.most_common())}."
    )
    return 0


def kind(name: str) -> str:
    """What a process is to the person who started the region: Ray's many are one thing."""
    if name.startswith("ray::ServeReplica:"):
        return name.rsplit(":", 1)[1]
    if name in {KEEPER, SERVER}:
        return "Valkey"
    return "vLLM" if "vllm" in name.lower() else "Ray"
