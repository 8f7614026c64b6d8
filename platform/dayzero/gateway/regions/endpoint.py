"""What a gateway does for its peers: tells its load, and generates for them, tokens in and tokens out.

- `POST /internal/v1/generate` goes to this region's own replicas and nowhere else: one hop, so there are no loops.
- The peer is trusted: the salt in its request is taken, the key that opened the route is the peer key alone.
- It is tried once. Whether the request is tried again is decided where it came from, within one budget.
- Before the stream an error is a plain HTTP error; inside it is a frame. A peer that leaves ends the work.
"""

import asyncio
import time
from contextlib import aclosing
from urllib.parse import parse_qs

import msgspec

from dayzero.api.errors import ModelNotFoundError
from dayzero.engine.errors import EngineProtocolError
from dayzero.engine.frames import encode_error
from dayzero.engine.types import EngineRequest
from dayzero.errors import InvalidRequestError
from dayzero.gateway.dispatch import Dispatcher
from dayzero.gateway.errors import ClientGoneError, DeadlineError
from dayzero.gateway.generation import carried, placed
from dayzero.gateway.http import (
    JSON_TYPE,
    Receive,
    Scope,
    Send,
    cancelled_when_client_leaves,
    header,
    read_body,
    send_bytes,
)
from dayzero.gateway.lifetime import Lifetime
from dayzero.gateway.regions.client import AVOID_HEADER, MODEL_HEADER, STREAM_TYPE
from dayzero.gateway.regions.dispatcher import RegionalDispatcher
from dayzero.gateway.regions.info import Digests, info
from dayzero.gateway.regions.outbox import Outbox, ready
from dayzero.gateway.regions.packing import unpack
from dayzero.gateway.service import Gateway, ServedModel
from dayzero.gateway.trail import Trail
from dayzero.telemetry import Attribute, SpanName

GENERATE = "/internal/v1/generate"
STUCK_S = 10.0
LARGE_BODY_BYTES = 1024 * 1024
MAX_AVOIDED = 64
_HEADERS = [(b"content-type", STREAM_TYPE.encode()), (b"cache-control", b"no-store")]
_OCTETS = (b"content-type", b"application/octet-stream")


def local_dispatcher(model: ServedModel) -> Dispatcher | None:
    """To the replicas of this region, without the way to others."""
    if isinstance(model.dispatcher, RegionalDispatcher):
        return model.dispatcher.local
    return model.dispatcher


class PeerGenerate:
    """The ASGI endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        with gateway.lifetime(scope["state"]["request_id"], GENERATE, scope) as lifetime:
            gateway.authenticate_peer(scope)
            gateway.admit()
            model = gateway.model(header(scope, MODEL_HEADER.encode()) or "")
            local = local_dispatcher(model)
            if local is None:
                raise ModelNotFoundError("This gateway has no replicas of its own.", param="model")
            lifetime.model, lifetime.stream = model.name, True
            lifetime.on_close(gateway.meter.enter(model.name).leave)
            limits = gateway.limits
            body = await read_body(scope, receive, limits.max_body_bytes, limits.body_timeout_s)
            async with cancelled_when_client_leaves(receive) as peer:
                encoding = header(scope, b"content-encoding")
                request = await _decoded(await unpack(body, encoding, limits.max_body_bytes))
                gateway.check_region(request)
                lifetime.prompt_tokens, lifetime.tenant = request.prompt_tokens, request.tenant
                lifetime.span.set(Attribute.REQUEST_ID, request.request_id)
                outbox = Outbox(send, _HEADERS, stuck_s=STUCK_S, before_last=peer.answered)
                await self._answer(local, request, _avoided(scope), lifetime, outbox)

    async def _answer(
        self,
        local: Dispatcher,
        request: EngineRequest,
        avoid: frozenset[str],
        lifetime: Lifetime,
        outbox: Outbox,
    ) -> None:
        gateway = self._gateway
        left_s = gateway.limits.request_timeout_s
        if request.deadline_s is not None:
            left_s = min(left_s, request.deadline_s - time.time())
        if left_s <= 0:
            raise DeadlineError("The request's time is over.")
        lifetime.attempts = 1
        trail = lifetime.trail = Trail(request.request_id, request.prompt_tokens)
        attempted = trail.begin(1)
        placement = placed(local, request, avoid, lifetime, attempted)
        await outbox.start(placement.order[0])
        with lifetime.span.child(SpanName.DISPATCH) as span:
            began_s = time.monotonic()
            dispatch = local.dispatch(carried(request, placement, span), placement)
            try:
                async with (
                    asyncio.timeout(left_s),
                    aclosing(ready(dispatch.deltas(), gateway.heartbeat_s)) as deltas,
                ):
                    async for delta in deltas:
                        if delta is None:
                            await outbox.heartbeat()
                            continue
                        await outbox.placed(dispatch.replica)
                        lifetime.count(delta)
                        attempted.note(delta, time.monotonic() - began_s)
                        if delta.finish is not None:
                            lifetime.finish = str(delta.finish)
                        await outbox.delta(delta)
            except TimeoutError:
                lifetime.failure = DeadlineError("The request took longer than it may.")
            except (asyncio.CancelledError, ClientGoneError):
                raise
            except Exception as e:  # noqa: BLE001 whatever it is, the peer is told
                lifetime.failure = gateway.as_ours(e, request.request_id)
            finally:
                attempted.replica = dispatch.replica
                attempted.error = lifetime.failure
                span.set(Attribute.REPLICA, dispatch.replica)
            if lifetime.failure is not None:
                span.fail(lifetime.failure)
                await outbox.error(encode_error(lifetime.failure))


class PeerLoad:
    """`GET /internal/v1/peer` and `/internal/v1/peer/digest?model=NAME`."""

    def __init__(self, gateway: Gateway, digests: Digests | None) -> None:
        self._gateway = gateway
        self._digests = digests

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        gateway = self._gateway
        gateway.authenticate_peer(scope)
        served = (
            (model.name, model.vocabulary, local)
            for model in gateway.models()
            if (local := local_dispatcher(model))
        )
        told = info(gateway.region, served, self._digests)
        await send_bytes(send, 200, msgspec.json.encode(told), [JSON_TYPE])

    async def digest(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self._gateway.authenticate_peer(scope)
        asked = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=4)
        model = self._gateway.model(asked.get("model", [""])[0])
        data = self._digests.encoded(model.name) if self._digests is not None else None
        if data is None:
            raise ModelNotFoundError("There is no digest of this model here.", param="model")
        await send_bytes(send, 200, data, [_OCTETS])


async def _decoded(body: bytes) -> EngineRequest:
    """Raises InvalidRequestError."""
    try:
        if len(body) < LARGE_BODY_BYTES:
            request = EngineRequest.decode(body)
        else:
            request = await asyncio.to_thread(EngineRequest.decode, body)
    except EngineProtocolError as e:
        raise InvalidRequestError(e.message, param="body") from e
    if not request.prompt_ids or len(request.prompt_ids) % 4:
        raise InvalidRequestError.of("prompt_ids", "A prompt is one token id or more, four bytes each.")
    return request


def _avoided(scope: Scope) -> frozenset[str]:
    return frozenset((header(scope, AVOID_HEADER.encode()) or "").split(",")[:MAX_AVOIDED]) - {""}
