"""Where the time to the first chunk goes: every step of a request timed by itself, in this process.

The steps are the product's own functions, with a simulated engine that takes no time; `WHOLE` is the gateway's ASGI
app over the same engine, asked as a server would ask it. What lies between processes (HAProxy, Serve, its handle) is
not in here.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dayzero.api.body import decode
from dayzero.api.chat import frames
from dayzero.api.chat.conversation import conversation, parameters, sampling
from dayzero.api.chat.request import decoder
from dayzero.engine.frames import decode as decode_frame
from dayzero.engine.frames import encode_delta
from dayzero.engine.simulated_profile import load_profile
from dayzero.engine.types import EngineRequest
from dayzero.frontend.chat_template import load
from dayzero.gateway.app import create_app
from dayzero.gateway.middleware import RequestEnvelope
from dayzero.gateway.retry import RetryPolicy
from dayzero.gateway.service import CanaryPolicy, Gateway, GatewayLimits, ServedModel
from dayzero.serving.coalesce import coalesce
from dayzero.serving.engines.sim import SimulatedEngine
from dayzero.serving.engines.voice import plain_voice
from dayzero.tenancy import KeyRing, ServerSecret, StoredKey, new_key
from dayzero.testing.local_dispatcher import LocalDispatcher
from overhead.prompts import Prompts
from overhead.systems import ENGINE_PROFILE, MAX_MODEL_TOKENS, MODEL

WHOLE = "the gateway and the engine in one process, asked as a server asks"
WARM = 3


@dataclass(slots=True)
class Steps:
    """Seconds of each step, one entry a request."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - began_s)

    def medians_ms(self) -> dict[str, float]:
        return {name: statistics.median(values) * 1e3 for name, values in self.seconds.items()}


@asynccontextmanager
async def in_process(folder: Path) -> AsyncIterator["Here"]:
    """A gateway and its engine in this process."""
    profile = load_profile(ENGINE_PROFILE)
    limits = replace(profile.limits, max_model_tokens=MAX_MODEL_TOKENS)
    engine = SimulatedEngine(msgspec.structs.replace(profile, limits=limits), plain_voice(folder))
    await engine.start()
    try:
        yield _here(folder, engine)
    finally:
        await engine.stop()


async def breakdown(here: "Here", prompts: Prompts, steps: Steps, requests: int) -> None:
    """Adds the seconds of each step, in the order of a request's life, and of `WHOLE`."""
    app = create_app(here.gateway)
    for _ in range(WARM):
        await _first_chunk(app, here.authorization, prompts.body(MODEL, 1))
    for _ in range(requests):
        await _step_by_step(steps, here, prompts.body(MODEL, 1))
        body = prompts.body(MODEL, 1)
        with steps.timed(WHOLE):
            await _first_chunk(app, here.authorization, body)


@dataclass(frozen=True, slots=True)
class Here:
    """A gateway and its engine in this process."""

    gateway: Gateway
    model: ServedModel
    engine: SimulatedEngine
    authorization: bytes


def _here(folder: Path, engine: SimulatedEngine) -> Here:
    key = new_key()
    model = ServedModel(
        name=MODEL,
        aliases=(),
        pool="here",
        frontend=load(folder),
        dispatcher=LocalDispatcher({"here": engine}),
        max_model_tokens=MAX_MODEL_TOKENS,
        default_max_tokens=64,
        created_s=0,
    )
    gateway = Gateway(
        region="here",
        models=[model],
        keys=KeyRing([StoredKey.of(key, "acme")]),
        secret=ServerSecret(b"s" * 32),
        limits=GatewayLimits(),
        retry_policy=RetryPolicy(),
        canary=CanaryPolicy(enabled=False),
    )
    return Here(gateway, model, engine, f"Bearer {key}".encode())


async def _step_by_step(steps: Steps, here: Here, body: bytes) -> None:
    gateway, model = here.gateway, here.model
    scope = {"type": "http", "headers": [(b"authorization", here.authorization)]}
    with steps.timed("authenticate"):
        tenant = gateway.authenticate(scope)
    with steps.timed("parse the body"):
        asked = decode(body, decoder)
    with steps.timed("conversation and parameters"):
        talk, params = conversation(asked), parameters(asked)
    with steps.timed("render: template, marks, tokens"):
        prompt = model.frontend.render(talk, scope="")
    with steps.timed("request: salt, sampling, encode"):
        request = EngineRequest(
            request_id=f"req_{time.perf_counter_ns()}",
            prompt_ids=prompt.ids,
            sampling=sampling(asked, max_tokens=params.max_tokens or 1, stop_ids=prompt.stop_ids),
            salt=gateway.salt(tenant),
            deadline_s=time.time() + 600,
        )
        payload = request.encode()
    with steps.timed("place"):
        model.dispatcher.place(request, frozenset())
    with steps.timed("replica: decode the request"):
        received = EngineRequest.decode(payload)
    with steps.timed("engine: hash, blocks, one step; coalesce"):
        async with aclosing(coalesce(here.engine.generate(received), lambda: 0.0)) as deltas:
            delta = await anext(deltas)
    with steps.timed("frame to the gateway: encode, decode"):
        delta = decode_frame(encode_delta(delta))
    with steps.timed("answer: ids to text to SSE"):
        out = model.frontend.decoder(prompt, stop=())
        frames.ChunkWriter(frames.Head("chatcmpl-x", 0, MODEL)).events(out.push(delta.token_ids))


async def _first_chunk(app: RequestEnvelope, authorization: bytes, body: bytes) -> None:
    """Returns when the first chunk of the body is there; what is left of the request is ended."""
    first = asyncio.Event()
    asked = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"the gateway answered {message['status']}")
        if message["type"] == "http.response.body" and message.get("body"):
            first.set()

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"authorization", authorization), (b"content-length", str(len(body)).encode())],
    }
    task = asyncio.create_task(app(scope, receive, send))
    waiting = asyncio.create_task(first.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not first.is_set():
        await task
        raise RuntimeError("the gateway ended without a chunk")
    _ENDING.add(task)
    task.add_done_callback(_ENDING.discard)


_ENDING: set["asyncio.Task[None]"] = set()
"""Requests whose first chunk was seen: kept until they have ended."""
