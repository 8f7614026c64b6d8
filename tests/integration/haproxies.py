"""A real HAProxy, started as Ray Serve starts it, with the configuration that Ray Serve writes; and a server behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from dayzero.serving.local.haproxy import write_program
from dayzero.serving.local.haproxy_program import mend
from tests.ports import free_port

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
GET = b"GET /v1/models HTTP/1.1\r\nhost: here\r\n\r\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class HAProxy:
    pid: int
    front: int
    config: Path
    inner: tuple[int, int]
    """The ports of metrics and statistics."""

    async def answer(self, request: bytes = GET, *, timeout_s: float = 20) -> tuple[int, str, bytes]:
        """Status, headers and body of the answer to one request, over a connection of its own."""
        reader, writer = await connect(self.front)
        try:
            writer.write(request)
            async with asyncio.timeout(timeout_s):
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                return int(head.split()[1]), head, await reader.readexactly(length)
        finally:
            writer.close()


async def answer_ok(reader, writer):
    """A server that says ok to everything."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            writer.write(ANSWER)
            await reader.readuntil(b"\r\n\r\n")


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(ConnectionError):
                return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.02)


def configure(folder: Path, backend_port: int | None, **settings: object) -> HAProxyConfig:
    """Ray's configuration in `folder`, as `serve_environment` has it; without a backend where there is no port."""
    ports = dict(zip(("metrics_port", "stats_port"), (free_port(), free_port()), strict=True))
    config = HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=free_port()),
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        metrics_socket_path=str(folder / "metrics.sock"),
        nbthread=1,
        is_head=True,
        has_received_routes=True,
        **ports | settings,
    )
    backends = {}
    if backend_port is not None:
        server = ServerConfig("one", "127.0.0.1", backend_port)
        # Healthy is what can be connected to: a test's server need not know Serve's own path for it.
        backends["app"] = BackendConfig(
            "app", "/", servers=[server], app_name="app", http_health_check_path=None
        )
    HAProxyApi(config, backends, str(folder / "haproxy.cfg"))._generate_config_file_internal()
    return config


@contextlib.asynccontextmanager
async def haproxy(
    folder: Path, backend_port: int | None, *, headers_timeout_s: float | None = None, **settings: object
) -> AsyncIterator[HAProxy]:
    config = configure(folder, backend_port, **settings)
    write_program(folder / "haproxy")
    path = folder / "haproxy.cfg"
    if headers_timeout_s is not None:  # the program leaves alone what is mended already
        path.write_text(mend(path.read_text(), headers_timeout_s))
    process = await asyncio.create_subprocess_exec(
        folder / "haproxy", "-db", "-f", path, "-dR", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        (await connect(config.frontend_port))[1].close()
        yield HAProxy(process.pid, config.frontend_port, path, (config.metrics_port, config.stats_port))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    """The port of a server whose requests, once their headers are read, go to this handler; it is healthy."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /-/healthz"):
                writer.write(ANSWER)
            else:
                await handler(reader, writer)
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[1]
    finally:
        running.close()
