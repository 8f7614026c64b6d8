"""The keeper of a region's Valkey: it runs the server and starts it again whenever it ends.

- A program of its own, run by its path: it imports nothing but the standard library.
- A server that ended comes back empty, at the same socket, after 0.1 s; one that ends again and again after up to 5 s.
- A server that is frozen has not ended: it is left alone.
- SIGTERM ends the server, then the keeper. A keeper that is killed leaves its server running.
"""

import signal
import subprocess
import sys
import time
from types import FrameType

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_SETTLED_S = 10.0
"""A server that ran this long had started well: the next pause is the first one again."""
_END_S = 2.0


class Keeper:
    """One server at a time, until it is told to end."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._server: subprocess.Popen[bytes] | None = None
        self._pausing = self._ending = False

    def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = time.monotonic()
            self._server = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
            if self._ending:  # told so while the server started
                self._end_server()
            code = self._server.wait()
            if self._ending:
                return
            if time.monotonic() - began_s > _SETTLED_S:
                pause_s = _FIRST_PAUSE_S
            how = f"signal {-code}" if code < 0 else f"exit {code}"
            print(f"The server ended ({how}). In {pause_s:.1f} s it is started again, empty.", flush=True)
            self._pause(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def end(self, _signal: int, _frame: FrameType | None) -> None:
        self._ending = True
        if self._pausing:
            raise SystemExit(0)
        self._end_server()

    def kill_server(self, _signal: int, _frame: FrameType | None) -> None:
        if self._server is not None:
            self._server.kill()

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.terminate()
            signal.setitimer(signal.ITIMER_REAL, _END_S)  # a frozen one would never end by itself

    def _pause(self, pause_s: float) -> None:
        self._pausing = True
        if self._ending:
            raise SystemExit(0)
        time.sleep(pause_s)
        self._pausing = False


def main(command: list[str]) -> None:
    keeper = Keeper(command)
    signal.signal(signal.SIGTERM, keeper.end)
    signal.signal(signal.SIGALRM, keeper.kill_server)
    keeper.run()


if __name__ == "__main__":
    main(sys.argv[1:])
