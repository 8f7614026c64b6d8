"""CPU time of a set of processes, to the microsecond, from the scheduler's own account of their threads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Processes:
    """Process ids by part (`HAProxy`, `gateway`, `replicas`, ...). `around`: there, but not on a request's path."""

    parts: Mapping[str, tuple[int, ...]]
    around: tuple[int, ...] = ()

    def sample(self) -> dict[str, float]:
        """CPU seconds so far of each part, and of what is around."""
        return {name: cpu_s(pids) for name, pids in self.parts.items()} | {"around": cpu_s(self.around)}


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds that the living threads of these processes have run."""
    ran_ns = 0
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                ran_ns += int(file.read_text().split()[0])
            except (OSError, IndexError):  # a thread that ended meanwhile
                continue
    return ran_ns / 1e9


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after}
