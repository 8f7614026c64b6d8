"""Which processes belong to a run, and how they are ended.

- A process is known by its id and its start time: an id that was given to another process is not ours.
- Every process of a run has the run's mark in its environment, inherited from the first; the table of processes is
  the truth, and a lost state file loses nothing.
- Ray renames its workers; what a renamed worker lost of its environment is found as a child of a marked one.
- Never ended: this process and those it descends from.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

MARK_VARIABLE = "DAYZERO_RUN_ID"
_LEADER_WAIT_S = 3.0
_TERM_WAIT_S = 2.0
_KILL_WAIT_S = 10.0
_CREATE_TIME_SLACK_S = 0.05


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One life of one process."""

    pid: int
    create_time_s: float
    name: str

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that now has `pid`; None when there is none (a zombie is none)."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid, process.create_time(), _name(process))
        except psutil.Error:
            return None

    @property
    def alive(self) -> bool:
        now = ProcessId.of(self.pid)
        return now is not None and abs(now.create_time_s - self.create_time_s) < _CREATE_TIME_SLACK_S

    def send(self, signal_number: int) -> None:
        """Sends a signal to this very process, or to nobody."""
        if self.alive:
            try:
                os.kill(self.pid, signal_number)
            except (ProcessLookupError, PermissionError):
                return


def find(*marks: str) -> list[ProcessId]:
    """The living processes whose mark begins with one of `marks`, and their children; oldest first."""
    spared = _own_line()
    marked = {
        pid for pid in _all_pids() if pid not in spared and (mark := mark_of(pid)) and mark.startswith(marks)
    }
    found = {process.pid: process for pid in marked if (process := ProcessId.of(pid)) is not None}
    for pid in marked:
        for child in _children(pid):
            if child not in spared and child not in found and (process := ProcessId.of(child)) is not None:
                found[child] = process
    return sorted(found.values(), key=lambda process: process.create_time_s)


def marks(prefix: str) -> set[str]:
    """The marks of living processes that begin with `prefix`."""
    return {mark for pid in _all_pids() if (mark := mark_of(pid)) and mark.startswith(prefix)}


def end(
    *marks: str,
    first: Iterable[ProcessId] = (),
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> list[ProcessId]:
    """Ends every process of these runs and returns those that were there.

    `first` is asked first and given its time, since it ends its own children in order; then the rest is asked, then
    killed, until none is left that could start another.
    """
    ended = {process.pid: process for process in find(*marks)}
    leaders = [process for process in first if process.alive]
    _ask(leaders, _LEADER_WAIT_S, clock, wait)
    _ask(find(*marks), _TERM_WAIT_S, clock, wait)
    deadline_s = clock() + _KILL_WAIT_S
    while (left := find(*marks)) and clock() < deadline_s:
        for process in left:
            ended.setdefault(process.pid, process)
            process.send(9)
        wait(0.1)
    return list(ended.values())


def _ask(
    processes: list[ProcessId], wait_s: float, clock: Callable[[], float], wait: Callable[[float], None]
) -> None:
    for process in processes:
        process.send(15)
    deadline_s = clock() + wait_s
    while any(process.alive for process in processes) and clock() < deadline_s:
        wait(0.05)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def mark_of(pid: int) -> str:
    """The mark in a process's environment; empty where it has none, or is gone, or another user's."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    name = f"{MARK_VARIABLE}=".encode()
    own = (variable for variable in variables.split(b"\0") if variable.startswith(name))
    return next(own, name).removeprefix(name).decode(errors="replace")


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _own_line() -> set[int]:
    me = psutil.Process()
    return {me.pid, *(parent.pid for parent in me.parents())}


def _name(process: psutil.Process) -> str:
    """A title that a person recognises: Ray's own title of a worker, a Python program's script or module."""
    try:
        words = process.cmdline()
        program = process.name()
    except psutil.Error:
        return "?"
    if words and words[0].startswith(("ray::", "ray-dashboard-")):
        return words[0].split()[0]
    if not program.startswith("python"):
        return program
    for flag, word in pairwise(words):
        if flag == "-m":
            return f"python {word}"
        if not word.startswith("-") and flag != "-c":
            return f"python {Path(word).name}"
    return program
