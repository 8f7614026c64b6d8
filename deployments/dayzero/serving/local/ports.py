"""Free ports for one Ray cluster beside others, and who holds one that is not free.

- Ray's inner ports are one block, below the range that the kernel hands to clients, so nothing takes one by chance.
- A free port is one that can be bound now and that no other region claims (`claims`); a stranger may still take it
  before Ray does, so a start tries the next block then.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from dayzero.serving.local.errors import PreflightError

LOOPBACK = "127.0.0.1"
BLOCK_PORTS = 300
_FIRST_BASE = 20_000
_LAST_BASE = 31_700
_WORKER_OFFSET = 100
_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class RayPorts:
    """Every port of one Ray cluster. Only `gcs` and `dashboard` are chosen by people."""

    gcs: int
    dashboard: int
    base: int

    def inner(self, offset: int) -> int:
        """A port of the block, by its place in it."""
        return self.base + offset

    def moved(self, gcs: int, dashboard: int) -> str:
        """What stands elsewhere than wished, in words; "" where nothing does."""
        places = (("dashboard", dashboard, self.dashboard), ("control store", gcs, self.gcs))
        return ", ".join(
            f"port {wished} is taken, so Ray's {what} is at {chosen}"
            for what, wished, chosen in places
            if wished != chosen
        )

    @property
    def workers(self) -> tuple[int, int]:
        return self.base + _WORKER_OFFSET, self.base + BLOCK_PORTS - 1


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose(
    gcs: int,
    dashboard: int,
    *,
    take: Callable[[int], bool],
    free: Callable[[int], bool] = is_free,
    skip: frozenset[int] = frozenset(),
) -> RayPorts:
    """Ports near the wished ones and a block whose every port is free, all claimed with `take`.

    `skip` names blocks that failed. Raises PreflightError.
    """
    chosen_gcs = _first_free(gcs, free, take, taken=set())
    chosen_dashboard = _first_free(dashboard, free, take, taken={chosen_gcs})
    for base in _bases():
        block = range(base, base + BLOCK_PORTS)
        wished = chosen_gcs in block or chosen_dashboard in block
        if base not in skip and not wished and all(map(free, block)) and take(base):
            return RayPorts(chosen_gcs, chosen_dashboard, base)
    raise PreflightError(
        f"No {BLOCK_PORTS} neighbouring free ports from {_FIRST_BASE} on: too many clusters run here."
    )


def _bases() -> Iterator[int]:
    return iter(range(_FIRST_BASE, _LAST_BASE + 1, BLOCK_PORTS))


def _first_free(
    wished: int, free: Callable[[int], bool], take: Callable[[int], bool], taken: set[int]
) -> int:
    for port in range(wished, min(wished + 200, 65_536)):
        if port not in taken and free(port) and take(port):
            return port
    raise PreflightError(f"No free port from {wished} to {wished + 199}. Name another one in the fleet file.")


def _stays(pid: int) -> bool:  # noqa: ARG001 the holder of a port, when nothing is about to end
    return False


def require_http_port(port: int, host: str, *, ends: Callable[[int], bool] = _stays) -> None:
    """Raises PreflightError with the holder's name when the API's port is taken.

    `ends`: whether the process of this id will have ended when the port is needed.
    """
    if (holders := _listening(port)) and all(map(ends, holders)):
        return
    if port < 1024 and not is_free(port, host):  # noqa: SIM102 two reasons, two sentences
        if holder_of(port) is None:
            raise PreflightError(
                f"Port {port} needs rights that you do not have. Choose one above 1023: --port 8000."
            )
    if not is_free(port, host):
        holder = holder_of(port) or "a process that cannot be seen from here"
        other = next((p for p in range(port + 1, min(port + 200, 65_536)) if is_free(p, host)), None)
        choice = (
            f"choose another port: --port {other}, or make up PORT={other}"
            if other
            else "choose another port"
        )
        raise PreflightError(f"Port {port} is taken by {holder}. Stop that, or {choice}.")


def holder_of(port: int) -> str | None:
    """Who listens on a TCP port, as well as this user may know; None when nobody is seen to."""
    with suppress(psutil.Error):
        for pid in sorted(_listening(port)):
            process = psutil.Process(pid)
            return f"process {pid} ({process.name()}, user {process.username()})"
    owner = _listening_user(port)
    return None if owner is None else f"a process of user id {owner}"


def _listening(port: int) -> set[int]:
    """The ids of the processes that are seen to listen there: this user's."""
    try:
        return {
            connection.pid
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.pid
            and connection.laddr
            and connection.laddr.port == port
        }
    except psutil.Error:
        return set()


def _listening_user(port: int) -> int | None:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return int(fields[7])
    return None
