"""A real gateway over HTTP on the loopback address, with engines of this process behind it."""

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Any

import openai
import uvicorn

from dayzero.api.contracts import OPENAI
from dayzero.gateway.app import create_app
from dayzero.gateway.lifetime import Settlement
from dayzero.gateway.retry import RetryPolicy
from dayzero.gateway.service import CanaryPolicy, Gateway, GatewayLimits, ServedModel
from dayzero.tenancy import KeyRing, Role, ServerSecret, StoredKey, new_key
from dayzero.testing.local_dispatcher import LocalDispatcher

MODEL = "smollm2-135m-instruct"


@dataclass
class Served:
    """A running gateway and what a test needs of it."""

    gateway: Gateway
    dispatcher: LocalDispatcher
    url: str
    key: str
    operator_key: str
    settlements: list[Settlement]

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        options = {"max_retries": 0, "timeout": 30.0} | options
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, **options)

    async def settled(self, count: int = 1, timeout_s: float = 10.0) -> list[Settlement]:
        """Once so many requests were settled."""
        async with asyncio.timeout(timeout_s):
            while len(self.settlements) < count:
                await asyncio.sleep(0.005)
        return self.settlements

    async def check_nothing_is_left(self) -> None:
        """A client has its answer a moment before the server has settled it."""
        async with asyncio.timeout(10):
            while len(self.gateway._in_flight) or self.dispatcher.book.total:
                await asyncio.sleep(0.002)
        self.dispatcher.book.check_integrity()


def free_socket() -> tuple[socket.socket, str]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock, f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextlib.asynccontextmanager
async def listening(app: Any, sock: socket.socket):
    """An ASGI app under uvicorn on a bound socket."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", access_log=False))
    server.install_signal_handlers = lambda: None
    running = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield
    finally:
        server.should_exit = True
        await running


@contextlib.asynccontextmanager
async def serving(
    engines,
    frontend,
    *,
    limits=None,
    retry=None,
    canary=None,
    tracing=None,
    max_model_tokens=8192,
    default_max_tokens=64,
    slots=16,
    reusable=None,
    decision_sink=None,
    contract=OPENAI,
):
    """A gateway over started engines; the engines are stopped at the end. `reusable`: as LocalDispatcher takes it."""
    key, operator_key = new_key(), new_key()
    settlements: list[Settlement] = []
    for engine in engines.values():
        await engine.start()
    dispatcher = LocalDispatcher(engines, slots=slots, reusable=reusable)
    gateway = Gateway(
        region="test",
        models=[
            ServedModel(
                name=MODEL,
                aliases=("smollm2",),
                pool="test",
                frontend=frontend,
                dispatcher=dispatcher,
                max_model_tokens=max_model_tokens,
                default_max_tokens=default_max_tokens,
                created_s=1_700_000_000,
                contract=contract,
            )
        ],
        keys=KeyRing([StoredKey.of(key, "acme"), StoredKey.of(operator_key, "ops", Role.OPERATOR)]),
        secret=ServerSecret(b"s" * 32),
        limits=limits or GatewayLimits(),
        retry_policy=retry or RetryPolicy(),
        canary=canary or CanaryPolicy(enabled=False),
        tracing=tracing,
        observers=[settlements.append],
        decision_sink=decision_sink,
    )
    sock, url = free_socket()
    try:
        async with listening(create_app(gateway), sock):
            yield Served(gateway, dispatcher, url, key, operator_key, settlements)
    finally:
        for engine in engines.values():
            await engine.stop()
