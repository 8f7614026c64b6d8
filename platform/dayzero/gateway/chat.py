"""`POST /v1/chat/completions`: steps 1 to 8 of a request's life (ARCHITECTURE.md).

- The key is checked before a byte of the body is read; everything is bounded before it is parsed.
- Streamed and buffered answers are the same events; the buffered one is their fold.
- Whatever ends the request, the iterator over the engine's deltas is closed, which aborts its work.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dayzero.api.body import decode
from dayzero.api.chat import frames
from dayzero.api.chat.conversation import (
    Parameters,
    conversation,
    grammar_param,
    parameters,
    pieces,
    sampling,
)
from dayzero.api.chat.request import ChatCompletionRequest, decoder, mendable
from dayzero.engine.errors import ContextLengthError, EngineError, EngineProtocolError
from dayzero.engine.types import EngineRequest, Finish, Grammar, GrammarKind, Media, TokenDelta, TokenLogprob
from dayzero.errors import InvalidRequestError
from dayzero.frontend.events import Event, Finished, FinishReason, OrderCheck, fold
from dayzero.frontend.protocol import Prompt
from dayzero.gateway.errors import ClientGoneError, DeadlineError
from dayzero.gateway.generation import RESTART
from dayzero.gateway.http import (
    JSON_TYPE,
    EventStream,
    Receive,
    Scope,
    Send,
    cancelled_when_client_leaves,
    header,
    read_body,
    send_bytes,
)
from dayzero.gateway.lifetime import Lifetime
from dayzero.gateway.service import Gateway, ServedModel
from dayzero.telemetry import Attribute
from dayzero.tenancy import Tenant

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
HOLD_S = 5.0
KEEP_ALIVE_S = 10.0
INLINE_BODY_BYTES = 64 * 1024
"""Bodies above this are parsed off the event loop: msgspec reads text at 400 MB/s, and tiny values at a tenth of it."""
LARGE_BODY_BYTES = 256 * 1024
"""Bodies above this are rendered one at a time."""
LAST_WORDS_S = 10.0
"""How long a client that does not read may hold up the end of its stream."""

_ENGINE_FIELDS = {"prompt_ids": "messages", "media": "messages"}
_ENDINGS = {Finish.STOP: FinishReason.STOP, Finish.LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to be generated."""

    head: frames.Head
    model: ServedModel
    prompt: Prompt
    parameters: Parameters
    engine_request: EngineRequest
    grammar_param: str
    """What an engine that cannot keep the grammar is refusing, in the client's words."""
    deadline_s: float
    """In the event loop's time."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one delta came to. `again`: forget the steps before, the answer begins anew."""

    events: list[Event]
    logprobs: tuple[TokenLogprob, ...]
    again: bool = False


@asynccontextmanager
async def deadline(at_s: float) -> AsyncIterator[None]:
    """Raises DeadlineError from the body of the `async with` once the event loop's time is past `at_s`."""
    try:
        async with asyncio.timeout_at(at_s):
            yield
    except TimeoutError:
        raise DeadlineError("The request took longer than this server allows.") from None


class ChatCompletions:
    """The ASGI endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        request_id: str = scope["state"]["request_id"]
        with gateway.lifetime(request_id, "/v1/chat/completions", scope) as lifetime:
            tenant = gateway.authenticate(scope)
            lifetime.tenant = tenant.id
            lifetime.span.set(Attribute.TENANT, tenant.id)
            lifetime.span.set(Attribute.KEY_ID, tenant.key_id)
            gateway.admit()
            limits = gateway.limits
            body = await read_body(scope, receive, limits.max_body_bytes, limits.body_timeout_s)
            async with cancelled_when_client_leaves(receive):
                request = await self._parse(body)
                prepared = await self._prepare(request, len(body), tenant, scope, lifetime)
                if prepared.parameters.stream:
                    await self._stream(prepared, lifetime, send)
                else:
                    await self._buffered(prepared, lifetime, send)

    async def _parse(self, body: bytes) -> ChatCompletionRequest:
        if len(body) <= INLINE_BODY_BYTES:
            return decode(body, decoder, mendable)
        return await asyncio.to_thread(decode, body, decoder, mendable)

    async def _prepare(
        self,
        request: ChatCompletionRequest,
        body_bytes: int,
        tenant: Tenant,
        scope: Scope,
        lifetime: Lifetime,
    ) -> Prepared:
        gateway, request_id = self._gateway, lifetime.request_id
        model = gateway.model(request.model)
        params = parameters(request)
        lifetime.model, lifetime.stream = model.name, params.stream
        lifetime.on_close(gateway.meter.enter(model.name).leave)
        salt = gateway.salt(tenant)
        prompt = await self._render(request, model, body_bytes, lifetime, salt)
        lifetime.prompt_tokens = prompt.billed_tokens
        room = model.max_model_tokens - prompt.tokens
        wanted = params.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            raise ContextLengthError(
                f"This model's context is {model.max_model_tokens:,} tokens; the messages have {prompt.tokens:,}"
                + (f" and `max_completion_tokens` asks for {wanted:,}." if wanted else "."),
                param="messages" if room < 1 or wanted is None else "max_completion_tokens",
            )
        asked = prompt.grammar
        engine_request = EngineRequest(
            request_id=request_id,
            prompt_ids=prompt.ids,
            sampling=sampling(
                request,
                max_tokens=wanted or min(room, model.default_max_tokens),
                stop_ids=prompt.stop_ids,
                contract=model.contract,
            ),
            salt=salt,
            tenant=tenant.id,
            deadline_s=time.time() + gateway.limits.request_timeout_s,
            grammar=Grammar(GrammarKind(asked.kind), asked.spec) if asked else None,
            media=tuple(
                Media(m.content, m.digest, m.offset_tokens, m.length_tokens, m.mime_type)
                for m in prompt.media
            ),
            regions=gateway.allowed_regions(tenant),
            affinity=params.affinity or header(scope, b"x-session-affinity") or header(scope, b"session-id"),
        )
        head = frames.Head(
            f"chatcmpl-{request_id.removeprefix('req_')}",
            int(time.time()),
            request.model,
            first_call=prompt.expected.first_call,
            moonshot_usage=model.contract.moonshot_usage,
        )
        deadline_s = asyncio.get_running_loop().time() + gateway.limits.request_timeout_s
        return Prepared(head, model, prompt, params, engine_request, grammar_param(request), deadline_s)

    async def _render(
        self,
        request: ChatCompletionRequest,
        model: ServedModel,
        body_bytes: int,
        lifetime: Lifetime,
        salt: str,
    ) -> Prompt:
        if (
            pieces(request) > model.max_model_tokens
        ):  # each costs a token at least; refused before any is built
            raise ContextLengthError(
                f"This model's context is {model.max_model_tokens:,} tokens; there are more messages and parts.",
                param="messages",
            )
        return await self._gateway.render(
            model,
            lambda: conversation(request, model.contract),
            scope=salt,
            large=body_bytes > LARGE_BODY_BYTES,
            parent=lifetime.span,
        )

    async def _steps(self, prepared: Prepared, lifetime: Lifetime) -> AsyncGenerator[Step, None]:
        """Deltas through the output decoder; the last step ends with Finished."""
        check = OrderCheck()
        out = prepared.model.frontend.decoder(prepared.prompt, stop=prepared.parameters.stop)
        deltas = _in_our_words(
            self._gateway.generate(prepared.model, prepared.engine_request, lifetime), prepared.grammar_param
        )
        async with aclosing(deltas):
            async for delta in deltas:
                if delta is RESTART:
                    check = OrderCheck()
                    out = prepared.model.frontend.decoder(prepared.prompt, stop=prepared.parameters.stop)
                    yield Step([], (), again=True)
                    continue
                events = out.push(delta.token_ids)
                lifetime.stopped = out.stopped and delta.finish is None
                ending = FinishReason.STOP if out.stopped else _ending(delta)
                if ending is not None:
                    events = [*events, *out.finish(ending)]
                lifetime.reasoning_tokens = out.tokens.reasoning
                for event in events:
                    check.accept(event)
                    if isinstance(event, Finished):
                        lifetime.finish, lifetime.degraded = str(event.reason), event.degraded
                yield Step(events, delta.logprobs or ())
                if ending is not None:
                    return
        raise EngineProtocolError("The engine's answer ended without a finish.")

    async def _buffered(self, prepared: Prepared, lifetime: Lifetime, send: Send) -> None:
        events: list[Event] = []
        logprobs: list[TokenLogprob] = []
        async with deadline(prepared.deadline_s), aclosing(self._steps(prepared, lifetime)) as steps:
            async for step in steps:
                if step.again:
                    events, logprobs = [], []
                events += step.events
                logprobs += step.logprobs
        body = frames.completion(
            prepared.head, fold(events), _usage(lifetime), _logprobs_wire(prepared, logprobs)
        )
        await send_bytes(send, 200, body, [JSON_TYPE])

    async def _stream(self, prepared: Prepared, lifetime: Lifetime, send: Send) -> None:
        writer = frames.ChunkWriter(prepared.head)
        async with EventStream(send, SSE_HEADERS, hold_s=HOLD_S, keep_alive_s=KEEP_ALIVE_S) as stream:
            try:
                pending: list[TokenLogprob] = []
                async with deadline(prepared.deadline_s), aclosing(self._steps(prepared, lifetime)) as steps:
                    async for step in steps:
                        if step.again:
                            pending = []
                        pending += step.logprobs
                        if not step.events and stream.started:
                            continue  # held back: part of a code point or of a stop string
                        logprobs = _logprobs_wire(prepared, pending) if step.events else None
                        if step.events:
                            pending = []
                            lifetime.shown = True
                        await stream.send(writer.events(step.events, logprobs, _usage(lifetime)))
                if prepared.parameters.include_usage:
                    await stream.send(writer.usage(_usage(lifetime)))
            except (asyncio.CancelledError, ClientGoneError):
                raise
            except Exception as e:
                if not stream.started:
                    raise
                lifetime.failure = self._gateway.as_ours(e, lifetime.request_id)
                await _last_words(stream, writer.error(lifetime.failure))
            await _last_words(stream, frames.DONE, close=True)


async def _in_our_words(
    deltas: AsyncGenerator[TokenDelta, None], grammar_param: str
) -> AsyncGenerator[TokenDelta, None]:
    """An engine's refusal names its own fields; a client knows only the dialect's."""
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                yield delta
    except InvalidRequestError as e:
        fields = {**_ENGINE_FIELDS, "grammar": grammar_param}
        e.param = fields.get(e.param or "", e.param)
        raise


async def _last_words(stream: EventStream, frame: bytes, *, close: bool = False) -> None:
    """Raises ClientGoneError for a client that does not read them in time."""
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            await stream.send(frame)
            if close:
                await stream.close()
    except TimeoutError:
        raise ClientGoneError("The client does not read its answer.") from None


def _ending(delta: TokenDelta) -> FinishReason | None:
    """Raises EngineError for a finish that is no answer."""
    if delta.finish is None:
        return None
    if delta.finish not in _ENDINGS:
        raise EngineError("The engine ended this answer before it was complete.")
    return _ENDINGS[delta.finish]


def _usage(lifetime: Lifetime) -> frames.Usage:
    return frames.Usage(
        prompt_tokens=lifetime.prompt_tokens,
        completion_tokens=lifetime.completion_tokens,
        cached_tokens=lifetime.cached_tokens,
        reasoning_tokens=lifetime.reasoning_tokens,
    )


def _logprobs_wire(prepared: Prepared, logprobs: list[TokenLogprob]) -> dict[str, Any] | None:
    if not prepared.parameters.logprobs:
        return None
    return frames.logprobs_wire(prepared.model.frontend, logprobs)
