"""Claims on ports, so that two regions which start at once do not choose the same ones.

Ray binds its ports many seconds after they were chosen. A claim is a name in the kernel's abstract socket space: it is
this host's, for every user, it is taken by one process at a time, and it ends with the last process that holds it.
The region's head inherits the claims and holds them for as long as it lives.
"""

import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class Claims:
    """The ports that this process claims; given up when closed, unless a child inherited them."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self, port: int) -> bool:
        """Whether the claim on `port` is ours now."""
        if port in self._held:
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0dayzero-port-{port}")
        except OSError:
            claim.close()
            return False
        self._held[port] = claim
        return True

    def keep_only(self, ports: Iterable[int]) -> None:
        """Gives up every claim but those."""
        kept = set(ports)
        for port in [port for port in self._held if port not in kept]:
            self._held.pop(port).close()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """For a child to inherit."""
        return tuple(claim.fileno() for claim in self._held.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.keep_only(())
