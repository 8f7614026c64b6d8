"""Figures that are taken from outside the product: the kernel's own."""

import contextlib
from collections.abc import Sequence
from pathlib import Path


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far, to the nanosecond where the kernel counts so."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total_ns += int((thread / "schedstat").read_bytes().split()[0])
    return total_ns / 1e9


def last_work_s(samples: Sequence[tuple[float, float]], window_s: float = 0.05, share: float = 0.25) -> float:
    """When the processes last used more than `share` of a core over a window.

    `samples`: (time, CPU seconds so far). An idle engine uses a few hundredths of a core.
    """
    busy_s = samples[0][0]
    first = 0
    for at_s, used_s in samples:
        while at_s - samples[first + 1][0] > window_s:
            first += 1
        began_s, used_before_s = samples[first]
        if at_s - began_s >= window_s and used_s - used_before_s > share * (at_s - began_s):
            busy_s = at_s
    return busy_s
