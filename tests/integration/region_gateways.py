"""Gateways of several regions over HTTP on the loopback address, in this process, with engines of this process."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import openai

from dayzero.gateway.app import create_app
from dayzero.gateway.http import JSON_TYPE, send_bytes
from dayzero.gateway.lifetime import Settlement
from dayzero.gateway.regions.dispatcher import RegionalDispatcher
from dayzero.gateway.regions.info import ModelInfo, PeerInfo
from dayzero.gateway.regions.peer import PeerAddress
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.gateway.retry import RetryPolicy
from dayzero.gateway.service import CanaryPolicy, Gateway, GatewayLimits, ServedModel
from dayzero.telemetry import Tracing
from dayzero.tenancy import KeyRing, Role, ServerSecret, StoredKey, new_key
from dayzero.testing.local_dispatcher import LocalDispatcher
from tests.integration.gateways import free_socket, listening

MODEL = "smollm2-135m-instruct"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
CLIENT_KEY, PEER_KEY, OPERATOR_KEY = new_key(), new_key(), new_key()


@dataclass
class Region:
    """One running gateway and what a test needs of it."""

    name: str
    gateway: Gateway
    peers: Peers
    engines: Mapping[str, Any]
    local: LocalDispatcher | None
    url: str
    settlements: list[Settlement] = field(default_factory=list)

    @functools.cached_property
    def asking(self) -> openai.AsyncOpenAI:
        """One client for many requests: making one takes the event loop tens of milliseconds."""
        return self.client()

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        options = {"max_retries": 0, "timeout": 30.0} | options
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=CLIENT_KEY, **options)

    async def settled(self, count: int) -> None:
        """A client has its answer a moment before the server has settled it."""
        async with asyncio.timeout(10):
            while len(self.settlements) < count:
                await asyncio.sleep(0.002)

    async def knows(self, *regions: str, up: bool = True, within_s: float = 10.0) -> None:
        """Once each of the peers is as wished."""
        async with asyncio.timeout(within_s):
            while any(self.peers[region].up is not up for region in regions):
                await asyncio.sleep(0.005)

    async def check_nothing_is_left(self) -> None:
        async with asyncio.timeout(10):
            while self.in_flight:
                await asyncio.sleep(0.002)
        if self.local:
            self.local.book.check_integrity()

    @property
    def in_flight(self) -> int:
        here = self.local.book.total if self.local else 0
        there = sum(peer.in_flight for peer in self.peers)
        engines = sum(engine.stats().running for engine in self.engines.values())
        return len(self.gateway._in_flight) + here + there + engines


def make_gateway(
    name: str,
    frontend: Any,
    *,
    peers: Peers,
    local: LocalDispatcher | None,
    policy: RegionsPolicy,
    settlements: list[Settlement],
    retry: RetryPolicy | None = None,
    limits: GatewayLimits | None = None,
    residency: Mapping[str, Sequence[str]] | None = None,
    keys: KeyRing | None = None,
    tracing: Tracing | None = None,
    vocabulary: str = "",
) -> Gateway:
    dispatcher = RegionalDispatcher(local, peers, model=MODEL, home=name, policy=policy.spill)
    model = ServedModel(
        name=MODEL,
        aliases=(),
        pool=name,
        frontend=frontend,
        dispatcher=dispatcher,
        max_model_tokens=8192,
        default_max_tokens=64,
        created_s=1_700_000_000,
        vocabulary=vocabulary,
    )
    return Gateway(
        region=name,
        models=[model],
        keys=keys
        or KeyRing(
            [
                StoredKey.of(CLIENT_KEY, "acme"),
                StoredKey.of(PEER_KEY, "regions", Role.PEER),
                StoredKey.of(OPERATOR_KEY, "ops", Role.OPERATOR),
            ]
        ),
        secret=ServerSecret(b"s" * 32),
        limits=limits or GatewayLimits(),
        retry_policy=retry or RetryPolicy(),
        canary=CanaryPolicy(enabled=False),
        tracing=tracing,
        observers=[settlements.append],
        peers=peers,
        residency=residency,
        heartbeat_s=policy.heartbeat_s,
    )


@contextlib.asynccontextmanager
async def region(
    name: str,
    frontend: Any,
    engines: Mapping[str, Any] | None = None,
    *,
    peers: Mapping[str, str] | None = None,
    policy: RegionsPolicy | None = None,
    sock: socket.socket | None = None,
    peer_key: str = PEER_KEY,
    slots: int = 16,
    max_requests: int = 256,
    **options: Any,
):
    """`peers`: the address of each other region. No engines: an edge."""
    policy = policy or RegionsPolicy()
    engines = engines or {}
    for engine in engines.values():
        await engine.start()
    local = LocalDispatcher(engines, slots=slots, max_requests=max_requests) if engines else None
    known = Peers.at([PeerAddress(*item) for item in (peers or {}).items()], peer_key, policy)
    settlements: list[Settlement] = []
    gateway = make_gateway(
        name, frontend, peers=known, local=local, policy=policy, settlements=settlements, **options
    )
    if sock is None:
        sock, _ = free_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        async with listening(create_app(gateway), sock):
            yield Region(name, gateway, known, engines, local, url, settlements)
    finally:
        for engine in engines.values():
            await engine.stop()


class FakeRegion:
    """An ASGI app that tells its load as a region does, and answers `generate` as a test wishes.

    `posts`: how many requests to generate came; `probes`: how many for its load; `ports`: the connections they used.
    `mute`: probes are answered no more.
    """

    def __init__(self, name: str, generate: Any) -> None:
        self.name = name
        self.posts = self.probes = 0
        self.mute = False
        self.ports: set[int] = set()
        self._generate = generate

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        self.ports.add(scope["client"][1])
        if scope["path"] == "/internal/v1/generate":
            self.posts += 1
            await self._generate(receive, send)
            return
        self.probes += scope["path"] == "/internal/v1/peer"
        if self.mute:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        told = ModelInfo(model=MODEL, able=1, wait_s=0.01, prefill_s_per_token=0.0001)
        body = msgspec.json.encode(PeerInfo(region=self.name, models=(told,)))
        await send_bytes(send, 200, body, [JSON_TYPE])


@contextlib.asynccontextmanager
async def fake_region(name: str, generate: Any):
    fake = FakeRegion(name, generate)
    sock, url = free_socket()
    async with listening(fake, sock):
        fake.url = url
        yield fake


class Counting:
    """Counts the requests that an app gets, and the connections they came over. `away_s`: how far it is.

    `slow_end_s`: how long the last bytes of an answer take, as with a server that does more before it is done.
    """

    def __init__(self, app: Any, away_s: float, slow_end_s: float) -> None:
        self._app = app
        self._away_s = away_s
        self._slow_end_s = slow_end_s
        self.paths: list[str] = []
        self.ports: set[int] = set()
        self.encodings: list[bytes | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.paths.append(scope["path"])
            self.ports.add(scope["client"][1])
            if scope["path"] == "/internal/v1/generate":
                self.encodings.append(dict(scope["headers"]).get(b"content-encoding"))
            await asyncio.sleep(self._away_s)

        async def slowly(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await asyncio.sleep(self._slow_end_s)

        await self._app(scope, receive, slowly)


@contextlib.asynccontextmanager
async def counted(region_: Region, *, away_s: float = 0.0, slow_end_s: float = 0.0):
    """A second door to a region, which counts."""
    sock, url = free_socket()
    counting = Counting(without_lifespan(create_app(region_.gateway)), away_s, slow_end_s)
    async with listening(counting, sock):
        yield counting, url


def without_lifespan(app: Any) -> Any:
    """The gateway was started by its first door."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    return inner
