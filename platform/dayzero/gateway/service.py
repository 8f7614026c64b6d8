"""The gateway's core, whatever serves it: models, keys, limits, and generation with retries.

One object per process. The ASGI app and its endpoints are thin over it; Serve's ingress and a gateway that runs
alone build the same one.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dayzero.api.errors import ModelNotFoundError
from dayzero.api.models import ModelObject
from dayzero.engine.types import EngineRequest, Sampling, TokenDelta
from dayzero.errors import DayzeroError
from dayzero.frontend.conversation import Conversation, Message, Role, Text
from dayzero.frontend.protocol import ModelFrontend, Prompt
from dayzero.gateway.dispatch import Dispatcher
from dayzero.gateway.errors import InternalError, OverloadedError
from dayzero.gateway.generation import Generator
from dayzero.gateway.http import Scope, header, header_values, trace_headers
from dayzero.gateway.lifetime import InFlight, Lifetime, Observer, Settlement
from dayzero.gateway.meter import Meter
from dayzero.gateway.middleware import new_request_id
from dayzero.gateway.readiness import Canary, Readiness
from dayzero.gateway.retry import RetryPolicy
from dayzero.telemetry import Attribute, Span, SpanName, Tracing, extract
from dayzero.telemetry.tracing import OFF
from dayzero.tenancy import KeyRing, ServerSecret, Tenant
from dayzero.tenancy import Role as KeyRole

log = logging.getLogger(__name__)

CANARY = Conversation((Message(Role.USER, (Text("Say yes."),)),))
CANARY_SALT = "canary"
"""Not a tenant's: canaries share no prefix with anybody."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of this fleet. `created_s`: Unix time, as OpenAI's model objects carry it."""

    name: str
    aliases: tuple[str, ...]
    pool: str
    frontend: ModelFrontend
    dispatcher: Dispatcher
    max_model_tokens: int
    default_max_tokens: int
    created_s: int


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    max_body_bytes: int = 8 * 1024 * 1024
    max_in_flight: int = 1024
    body_timeout_s: float = 60.0
    request_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """`enabled` False sends none: then only users' requests prove that the path works."""

    enabled: bool = True
    period_s: float = 10.0
    timeout_s: float = 30.0
    max_tokens: int = 1


class Gateway:
    """See the module's docstring. `start` begins the canaries; `stop` ends them."""

    def __init__(
        self,
        *,
        region: str,
        models: Sequence[ServedModel],
        keys: KeyRing,
        secret: ServerSecret,
        limits: GatewayLimits,
        retry_policy: RetryPolicy,
        canary: CanaryPolicy,
        tracing: Tracing | None = None,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.meter = Meter(models=[model.name for model in models], pools=[model.pool for model in models])
        self._region = region
        self._models: Mapping[str, ServedModel] = {
            name: model for model in models for name in (model.name, *model.aliases)
        }
        self._canonical = tuple(models)
        self._keys = keys
        self._secret = secret
        self._clock = clock
        self._tracing = tracing or Tracing()
        self._generator = Generator(retry_policy, clock=clock, on_retry=self.meter.retried)
        self._in_flight = InFlight()
        self._observers = (*observers, self.meter.settled, self._note_answer)
        self._started_s = clock()
        self._small_renders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="render")
        self._large_renders = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render-large")
        self._canary_policy = canary
        self._canaries = {
            model.name: Canary(
                lambda model=model: self._send_canary(model),  # type: ignore[misc]
                period_s=canary.period_s,
                timeout_s=canary.timeout_s,
                clock=clock,
                on_outcome=lambda outcome, model=model: self.meter.canary(model.pool, outcome),  # type: ignore[misc]
            )
            for model in models
        }
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if self._canary_policy.enabled:
            self._tasks = [asyncio.create_task(canary.run()) for canary in self._canaries.values()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._small_renders, self._large_renders):
            pool.shutdown(wait=False, cancel_futures=True)

    # Admission

    def authenticate(self, scope: Scope) -> Tenant:
        """Raises AuthenticationError."""
        return self._keys.authenticate(header_values(scope, b"authorization"))

    def authenticate_operator(self, scope: Scope) -> Tenant:
        """Raises AuthenticationError or PermissionDeniedError."""
        return self._keys.authenticate(header_values(scope, b"authorization"), KeyRole.OPERATOR)

    def salt(self, tenant: Tenant) -> str:
        return self._secret.cache_salt(tenant)

    def lifetime(self, request_id: str, route: str, scope: Scope) -> Lifetime:
        """The owner of a request that just arrived, with the span that is the parent of all of its others."""
        span = self._tracing.start(SpanName.REQUEST, extract(trace_headers(scope)))
        span.set(Attribute.REQUEST_ID, request_id)
        span.set(Attribute.CLIENT_REQUEST_ID, header(scope, b"x-client-request-id"))
        span.set(Attribute.ROUTE, route)
        span.set(Attribute.REGION, self._region)
        return Lifetime(request_id, route, self._in_flight, self._observers, self._clock, span)

    def admit(self) -> None:
        """Raises OverloadedError. The caller's own lifetime is already counted."""
        if len(self._in_flight) > self.limits.max_in_flight:
            raise OverloadedError("This gateway holds as many requests as it may.", retry_after_s=1.0)

    def model(self, name: str) -> ServedModel:
        """By name or alias. Raises ModelNotFoundError."""
        if name not in self._models:
            served = ", ".join(model.name for model in self._canonical)
            raise ModelNotFoundError(f"No such model here; served: {served}.", param="model")
        return self._models[name]

    # Generation

    async def render(
        self,
        model: ServedModel,
        conversation: Callable[[], Conversation],
        *,
        large: bool = False,
        parent: Span = OFF,
    ) -> Prompt:
        """Off the event loop, the conversation's making included: a long one takes milliseconds to seconds.

        `large` ones share one thread, so that they make each other wait and nobody else.
        """

        def work() -> tuple[Conversation, Prompt]:
            made = conversation()
            return made, model.frontend.render(made)

        pool = self._large_renders if large else self._small_renders
        with parent.child(SpanName.RENDER) as span:
            made, prompt = await asyncio.get_running_loop().run_in_executor(pool, work)
            span.set(Attribute.MESSAGES, len(made.messages))
            span.set(Attribute.TOOLS, len(made.tools))
            span.set(Attribute.PROMPT_TOKENS, prompt.tokens)
            return prompt

    async def generate(
        self, model: ServedModel, request: EngineRequest, lifetime: Lifetime
    ) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of one answer, each accounted for; see `Generator.generate`."""
        async with aclosing(self._generator.generate(model.dispatcher, request, lifetime)) as deltas:
            async for delta in deltas:
                gap_s = lifetime.count(delta)
                if gap_s is not None:
                    self.meter.tokens_between(model.name, gap_s, len(delta.token_ids))
                yield delta

    def as_ours(self, error: Exception, request_id: str) -> DayzeroError:
        """Any exception as an error that may be shown; what is not ours is logged and hidden."""
        if isinstance(error, DayzeroError):
            return error
        log.error("request %s failed", request_id, exc_info=error)
        return InternalError("Something failed on our side.")

    # Status

    def model_objects(self) -> list[ModelObject]:
        return [_model_object(model) for model in self._canonical]

    def model_object(self, name: str) -> ModelObject:
        return _model_object(self.model(name))

    def readiness(self) -> Readiness:
        """Ready when every model is."""
        states = {name: canary.readiness() for name, canary in self._canaries.items()}
        for name, state in states.items():
            if not state.ready:
                return Readiness(ready=False, reason=f"{name}: {state.reason}")
        return Readiness(ready=True, reason="every model answered lately")

    def metrics_text(self) -> bytes:
        """Prometheus' text format, replicas counted as they are now."""
        for model in self._canonical:
            self.meter.replicas(model.pool, [replica["health"] for replica in model.dispatcher.replicas()])
        return self.meter.text()

    def status(self) -> dict[str, Any]:
        """What `dayzero status` shows."""
        readiness = self.readiness()
        return {
            "region": self._region,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "models": [
                {"model": model.name, "replicas": model.dispatcher.replicas()} for model in self._canonical
            ],
            "gateway": {
                "in_flight": len(self._in_flight),
                "requests_total": self._in_flight.admitted_total,
                "uptime_s": round(self._clock() - self._started_s, 1),
            },
        }

    def _note_answer(self, settlement: Settlement) -> None:
        if settlement.completion_tokens and settlement.model in self._canaries:
            self._canaries[settlement.model].answered()

    async def _send_canary(self, model: ServedModel) -> None:
        prompt = await self.render(model, lambda: CANARY)
        request = EngineRequest(
            request_id=f"canary_{new_request_id()}",
            prompt_ids=prompt.ids,
            sampling=Sampling(
                max_tokens=self._canary_policy.max_tokens, temperature=0.0, stop_token_ids=prompt.stop_ids
            ),
            salt=CANARY_SALT,
        )
        # Not a user's request: counted nowhere but as a canary.
        with Lifetime(request.request_id, "canary", InFlight(), (), self._clock) as lifetime:
            async with aclosing(self._generator.generate(model.dispatcher, request, lifetime)) as deltas:
                async for _ in deltas:
                    pass


def _model_object(model: ServedModel) -> ModelObject:
    return ModelObject(model.name, model.created_s, model.max_model_tokens)
