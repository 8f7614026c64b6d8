"""A region's run state: what the region should be, written before the first process and after every step.

- Written whole or not at all. A state that cannot be read counts as none: the processes' marks say the rest.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.ports import RayPorts

Phase = Literal["starting", "running"]


@dataclass(frozen=True, slots=True)
class RunState:
    """One run of one region."""

    run_id: str
    phase: Phase
    region: str
    engine: str
    fleet_name: str
    region_hash: str  # of `Fleet.hash_of`
    host: str
    http_port: int
    ray: RayPorts
    ray_address: str  # for drivers
    short_folder: str
    store_url: str  # without credentials
    started_at_s: float  # Unix time
    head: ProcessId | None = None  # Ray's first process: the region lives as long as it does
    store: ProcessId | None = None  # the keeper of an embedded store
    engine_option: Literal["vllm", "sim"] | None = (
        None  # what `up` was told beside the fleet file (`local.options`)
    )
    port_option: int | None = None
    vocabulary_option: str | None = None
    vocabulary: str | None = None  # which Kimi K3 vocabulary it was started with, for people
    contents: dict[str, str] | None = (
        None  # digests of the files that the fleet file only names (`local.kimi_k3`)
    )

    @property
    def base_url(self) -> str:
        """Where a client on this machine reaches the gateway."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 compared, not bound
        return f"http://[{host}]:{self.http_port}" if ":" in host else f"http://{host}:{self.http_port}"

    @property
    def dashboard_url(self) -> str:
        return f"http://127.0.0.1:{self.ray.dashboard}"

    @property
    def alive(self) -> bool:
        """Whether its cluster runs, as far as its first process tells."""
        return self.head is not None and self.head.alive

    def with_head(self, process: ProcessId) -> "RunState":
        return replace(self, head=process)

    def with_store(self, process: ProcessId) -> "RunState":
        return replace(self, store=process)

    def running(self) -> "RunState":
        return replace(self, phase="running")

    def write(self, path: Path) -> None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n")
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> "RunState | None":
        """None where there is no state, or none that this version can read."""
        try:
            record = json.loads(path.read_text())
            record["ray"] = RayPorts(**record["ray"])
            for name in ("head", "store"):
                record[name] = ProcessId(**record[name]) if record[name] is not None else None
            return cls(**record)
        except (OSError, ValueError, KeyError, TypeError):
            return None
