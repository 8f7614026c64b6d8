"""`dayzero down`: stop what runs, and say what was stopped."""

import json
from collections import Counter

from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.region import LocalRegion


def stop(*, as_json: bool) -> int:
    ended = LocalRegion(RunFolder.default()).down()
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
    return "vLLM" if "vllm" in name.lower() else "Ray"
