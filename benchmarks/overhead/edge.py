"""An edge before a region: `dayzero gateway` as a child process, with the run folder of the region's keys."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from dayzero.config import Fleet
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.probe import get

_START_S = 60.0
_END_S = 10.0
_DIES_WITH_PARENT = 1
_libc = ctypes.CDLL(None)


@contextmanager
def running(run: FleetFolder, fleet: Fleet, port: int) -> Iterator[int]:
    """The id of its process, once it is ready: its region answered, and a request through both. Then it is ended."""
    file = run.path / "edge.json"  # JSON is YAML
    data = fleet.model_dump(mode="json", exclude_none=True)
    for model in data["serving"][
        "models"
    ]:  # of these weights the file's rules know that 12,000 tokens are too many
        model["weights"] = {"source": "path", "path": str(run.models / "smollm2")}
    file.write_bytes(msgspec.json.encode(data))
    process = subprocess.Popen(
        [sys.executable, "-m", "dayzero.cli.main", "gateway", str(file), "--port", str(port)],
        env=os.environ
        | {"DAYZERO_RUN": str(run.path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 nothing was asked yet: this process has one thread
    )
    try:
        deadline_s = time.monotonic() + _START_S
        while not get(f"http://127.0.0.1:{port}/readyz").ok:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("the edge did not start, or found no region")
            time.sleep(0.1)
        yield process.pid
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _die_with_parent() -> None:
    """The edge holds a network open (`wan`): it goes even where the benchmark is killed."""
    _libc.prctl(_DIES_WITH_PARENT, signal.SIGKILL)
