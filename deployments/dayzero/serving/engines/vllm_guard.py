"""Guard: ends an engine's processes when the process that started it is gone, however it went.

vLLM's EngineCore outlives a parent that was killed (SIGKILL, out of memory) and keeps its memory for ever. The guard is
a small process beside the engine: it waits for its parent's end, kills what carries the engine's mark, and removes
the engine's folder.

- The mark is an environment variable of the engine's processes whose value is the engine's own folder; so the guard
  also covers processes that start later, and never touches anyone else's.
- It runs in its own session: a Ctrl-C meant for its parent does not reach it.
- Run as a script, it imports the standard library only.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "VLLM_RPC_BASE_PATH"
_LOOK_EVERY_S = 0.5
_ROUNDS = 20


class Guard:
    """The parent's side. The pipe to the guard closes with this process, or by `close`."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-I", "-S", __file__, str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self, patience_s: float = 10.0) -> None:
        """Let it end what is left of the engine, and itself. Blocks; may be called twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(patience_s)


def marked(folder: str) -> list[int]:
    """Ids of the processes that carry the mark of this folder."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _await_parents_end(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_EVERY_S)
        if readable:  # nothing is ever written: it is the end
            return


def _kill_marked(folder: str) -> None:
    """Until none is left: one that was just starting shows only in the next round."""
    for _ in range(_ROUNDS):
        pids = marked(folder)
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def main(folder: str, parent_pid: str) -> None:
    _await_parents_end(int(parent_pid))
    _kill_marked(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
