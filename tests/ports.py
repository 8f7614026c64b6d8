"""Ports of the loopback address on which nobody listens."""

import contextlib
import socket


def free_port() -> int:
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many neighbouring ones."""
    while True:
        with contextlib.ExitStack() as probes:
            first = probes.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for place in range(1, count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port + place))
            except (OSError, OverflowError):
                continue
            return port
