"""Two networks on one machine and a line between them with a round trip of your choice, all in user space.

    python -m overhead.wan          `Wan` starts it, tells it the round trip in lines, and ends it by closing its input

- Each network is a namespace without a name, held by this program and by what runs inside. The kernel removes it with
  the last of them: whatever happens, nothing stays behind.
- The line delays and nothing else: no loss, no reordering, no limit to its rate. What an answer takes beyond whole
  round trips is therefore the processes' own.
- TCP is as a plain kernel has it, whatever this machine is set to: loss-based (`reno`, the one that every namespace
  may use; what it does here `cubic` does too), slow start after idle, and nothing remembered of earlier connections.
"""

import ctypes
import fcntl
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NEAR, FAR = "198.18.0.1", "198.18.0.2"
"""The addresses of the two ends, from the range that is set aside for benchmarks."""
_DEVICE = "line"
_TUN = Path("/dev/net/tun")
_SETTINGS = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "1", "tcp_no_metrics_save": "1"}
_SET_TUN, _IS_TUN, _PLAIN_PACKETS = 0x400454CA, 0x0001, 0x1000
_NEW_NETWORK = 0x40000000
_PACKETS_AT_ONCE = 64
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """What this machine lacks; None: nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it makes network namespaces, which needs root on Linux"
    if shutil.which("ip") is None:
        return "it needs iproute2 (`ip`)"
    if not _TUN.exists():
        return f"it needs {_TUN}"
    return None


@dataclass(frozen=True, slots=True)
class Wan:
    """The running program. `namespaces`: of each end, as a path that opens it."""

    process: "subprocess.Popen[str]"
    namespaces: dict[str, str]

    def enter(self, end: str) -> None:
        """Moves this process to the network of an end, with all that it starts from now on. It must have one thread."""
        _enter(self.namespaces[end])

    def inside(self, end: str, *command: str) -> list[str]:
        """The command that runs `command` at an end."""
        return [sys.executable, "-m", "overhead.wan", self.namespaces[end], *command]

    def set_round_trip(self, seconds: float) -> None:
        """From the next packet on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{seconds / 2}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def set(self, setting: str, value: str) -> None:
        """A TCP setting, at both ends."""
        for end in self.namespaces:
            _run(*self.inside(end, "tee", f"/proc/sys/net/ipv4/{setting}"), given=value)

    def set_first_window(self, segments: int) -> None:
        """What a connection may send before it has heard anything, new or after a rest, at both ends."""
        for end, other in ((NEAR, FAR), (FAR, NEAR)):
            words = (
                f"ip route replace {other} dev {_DEVICE} src {end} initcwnd {segments} initrwnd {segments}"
            )
            _run(*self.inside(end, *words.split()))


@contextmanager
def running() -> Iterator[Wan]:
    """Raises RuntimeError where the kernel does not let us."""
    process = subprocess.Popen(
        [sys.executable, "-m", "overhead.wan"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the benchmark, which ends this
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        if not told:
            raise RuntimeError("the networks could not be made; what the kernel said stands above")
        yield Wan(process, json.loads(told))
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _run(*command: str, given: str | None = None) -> None:
    subprocess.run(command, check=True, input=given, text=True, stdout=subprocess.DEVNULL)


def _enter(namespace: str) -> None:
    with Path(namespace).open() as file:
        _checked(_libc.setns(file.fileno(), _NEW_NETWORK), "setns")


def _checked(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _network(address: str, other: str) -> tuple[int, int]:
    """A new network with one end of the line in it: its namespace and the packets, as descriptors."""
    _checked(_libc.unshare(_NEW_NETWORK), "unshare")
    for name, value in _SETTINGS.items():
        Path(f"/proc/sys/net/ipv4/{name}").write_text(value)
    tun = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _SET_TUN, struct.pack("16sH22x", _DEVICE.encode(), _IS_TUN | _PLAIN_PACKETS))
    for words in (
        "link set lo up",
        f"addr add {address} peer {other} dev {_DEVICE}",
        f"link set {_DEVICE} up txqueuelen 10000",
    ):
        _run("ip", *words.split())
    return os.open("/proc/self/ns/net", os.O_RDONLY), tun


def _carry(ends: tuple[int, int]) -> None:
    """Packets from each end to the other, late by the delay; until the standard input ends."""
    across = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way: deque[tuple[float, int, bytes]] = (
        deque()
    )  # the delay is one for both ways, so they stay in order
    delay_s = 0.0
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([sys.stdin.fileno(), *ends], [], [], wait_s)
        for end in readable:
            if end in across:
                for packet in _packets(end):
                    under_way.append((time.monotonic() + delay_s, across[end], packet))
                continue
            line = sys.stdin.readline()
            if not line:
                return
            while under_way:  # what is on the way arrives at once, so that nothing overtakes it
                _deliver(*under_way.popleft()[1:])
            delay_s = float(line)
            print("set", flush=True)
        while under_way and under_way[0][0] <= time.monotonic():
            _deliver(*under_way.popleft()[1:])


def _packets(end: int) -> Iterator[bytes]:
    for _ in range(_PACKETS_AT_ONCE):
        try:
            yield os.read(end, 65536)
        except BlockingIOError:
            return


def _deliver(end: int, packet: bytes) -> None:
    try:
        os.write(end, packet)
    except OSError:  # the other end has no room, or takes no such packet: a line may lose it
        print("the line lost a packet", file=sys.stderr)


def main(arguments: list[str]) -> None:
    if arguments:  # a namespace, and what runs in it
        _enter(arguments[0])
        os.execvp(arguments[1], arguments[1:])
    near, far = _network(NEAR, FAR), _network(FAR, NEAR)
    paths = {end: f"/proc/{os.getpid()}/fd/{made[0]}" for end, made in ((NEAR, near), (FAR, far))}
    print(json.dumps(paths), flush=True)
    _carry((near[1], far[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
