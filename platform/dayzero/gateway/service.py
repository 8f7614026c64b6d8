"""The gateway's core, whatever serves it: models, keys, limits, and generation with retries.

One object per process. The ASGI app and its endpoints are thin over it; Serve's ingress and a gateway that runs
alone build the same one.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dayzero.api.contracts import OPENAI, Contract
from dayzero.api.errors import ModelNotFoundError
from dayzero.api.models import ModelObject
from dayzero.engine.chains import INLINE_TOKENS, with_chain
from dayzero.engine.types import EngineRequest, Sampling, TokenDelta
from dayzero.errors import DayzeroError, InvalidRequestError
from dayzero.frontend.conversation import Conversation, Message, Role, Text
from dayzero.frontend.protocol import ModelFrontend, Prompt
from dayzero.gateway.background import kept_up
from dayzero.gateway.decisions import DecisionLog, DecisionSink
from dayzero.gateway.dispatch import Dispatcher
from dayzero.gateway.errors import InternalError, OverloadedError
from dayzero.gateway.feed_view import FeedView
from dayzero.gateway.generation import RESTART, Generator
from dayzero.gateway.hits import Hits, Outcome
from dayzero.gateway.http import Scope, header, header_values, trace_headers
from dayzero.gateway.lifetime import InFlight, Lifetime, Observer, Settlement
from dayzero.gateway.meter import Meter
from dayzero.gateway.middleware import new_request_id
from dayzero.gateway.readiness import Canary, Readiness
from dayzero.gateway.regions.peers import Peers
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
    """A model of this fleet.

    `default_max_tokens`: the limit of an answer where a request has none. `created_s`: Unix time, as OpenAI's model
    objects carry it. `contract`: what its API promises. `vocabulary`: the SHA-256 of the file that its tokens come from,
    hex; empty where nobody knows.
    """

    name: str
    aliases: tuple[str, ...]
    pool: str
    frontend: ModelFrontend
    dispatcher: Dispatcher
    max_model_tokens: int
    default_max_tokens: int
    created_s: int
    contract: Contract = OPENAI
    vocabulary: str = ""


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
    """See the module's docstring. `start` begins canaries and probes of peers; `stop` ends them.

    `peers`: the other regions, where the models' dispatchers know some. `residency`: tenants whose data only the named
    regions may process. `heartbeat_s`: between signs of life in a stream to another region. `background`: what runs as
    long as the gateway does, by name. `feed`: what is known of the caches of this region's replicas.
    """

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
        peers: Peers | None = None,
        residency: Mapping[str, Sequence[str]] | None = None,
        heartbeat_s: float = 1.0,
        background: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] | None = None,
        feed: FeedView | None = None,
        decision_sink: DecisionSink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.region = region
        self.decisions = DecisionLog(region, decision_sink)
        self.heartbeat_s = heartbeat_s
        self._peers = peers or Peers(())
        self.meter = Meter(
            models=[model.name for model in models],
            pools=[model.pool for model in models],
            regions=[region, *self._peers.regions],
            oddities=frozenset().union(*(model.frontend.oddities for model in models)),
        )
        self._peers.observe(self.meter)
        self._peers.speak({model.name: model.vocabulary for model in models})
        self._residency = {tenant: tuple(regions) for tenant, regions in (residency or {}).items()}
        self._models: Mapping[str, ServedModel] = {
            name: model for model in models for name in (model.name, *model.aliases)
        }
        self._canonical = tuple(models)
        self._keys = keys
        self._secret = secret
        self._clock = clock
        self._tracing = tracing or Tracing()
        self._tracing.report_drops(self.meter.metrics.spans_dropped)
        self._generator = Generator(retry_policy, clock=clock, on_retry=self.meter.retried)
        self._in_flight = InFlight()
        self._hits = Hits(at_s=clock())
        # Ours first: whoever waits for an observer that was handed in finds the rest done.
        self._observers = (
            self.meter.settled,
            self.decisions.settled,
            self._note_answer,
            self._note_cache,
            *observers,
        )
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
        self._background = dict(background or {})
        self._feed = feed
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._peers.start()
        running = dict(self._background)
        if self._feed is not None:
            running["the feed"] = self._feed.run
        if self._canary_policy.enabled:
            running |= {f"the canary of {name}": canary.run for name, canary in self._canaries.items()}
        self._tasks = [asyncio.create_task(kept_up(name, run)) for name, run in running.items()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._peers.stop()
        for pool in (self._small_renders, self._large_renders):
            pool.shutdown(wait=False, cancel_futures=True)

    # Admission

    def authenticate(self, scope: Scope) -> Tenant:
        """Raises AuthenticationError."""
        return self._keys.authenticate(header_values(scope, b"authorization"))

    def authenticate_operator(self, scope: Scope) -> Tenant:
        """Raises AuthenticationError or PermissionDeniedError."""
        return self._keys.authenticate(header_values(scope, b"authorization"), KeyRole.OPERATOR)

    def authenticate_peer(self, scope: Scope) -> Tenant:
        """Raises AuthenticationError or PermissionDeniedError."""
        return self._keys.authenticate(header_values(scope, b"authorization"), KeyRole.PEER)

    def salt(self, tenant: Tenant) -> str:
        return self._secret.cache_salt(tenant)

    def allowed_regions(self, tenant: Tenant) -> tuple[str, ...] | None:
        """The only regions that may process a tenant's data; None: all."""
        return self._residency.get(tenant.id)

    def check_region(self, request: EngineRequest) -> None:
        """Raises InvalidRequestError for a request that this region may not process: its sender chose wrongly."""
        if request.regions is not None and self.region not in request.regions:
            raise InvalidRequestError.of("regions", f"The region {self.region} may not process this request.")

    def lifetime(self, request_id: str, route: str, scope: Scope) -> Lifetime:
        """The owner of a request that just arrived, with the span that is the parent of all of its others."""
        span = self._tracing.start(SpanName.REQUEST, extract(trace_headers(scope)))
        span.set(Attribute.REQUEST_ID, request_id)
        span.set(Attribute.CLIENT_REQUEST_ID, header(scope, b"x-client-request-id"))
        span.set(Attribute.ROUTE, route)
        span.set(Attribute.REGION, self.region)
        return Lifetime(request_id, route, self._in_flight, self._observers, self._clock, span)

    def admit(self) -> None:
        """Raises OverloadedError. The caller's own lifetime is already counted."""
        if len(self._in_flight) > self.limits.max_in_flight:
            raise OverloadedError("This gateway holds as many requests as it may.", retry_after_s=1.0)

    def models(self) -> tuple[ServedModel, ...]:
        return self._canonical

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
        scope: str,
        large: bool = False,
        parent: Span = OFF,
    ) -> Prompt:
        """Off the event loop, the conversation's making included: a long one takes milliseconds to seconds.

        `large` ones share one thread, so that they make each other wait and nobody else. `scope`: whose texts these
        are, as `ModelFrontend.render` takes it.
        """

        def work() -> tuple[Conversation, Prompt]:
            made = conversation()
            return made, model.frontend.render(made, scope=scope)

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
        chained = await self._chained(model, request)
        async with aclosing(self._generator.generate(model.dispatcher, chained, lifetime)) as deltas:
            async for delta in deltas:
                if delta is RESTART:
                    lifetime.restart()
                gap_s = lifetime.count(delta)
                if gap_s is not None:
                    self.meter.tokens_between(model.name, gap_s, len(delta.token_ids))
                yield delta

    async def _chained(self, model: ServedModel, request: EngineRequest) -> EngineRequest:
        """With its chain, hashed once for every decision about it; a long prompt's off the event loop."""
        unit = min(model.dispatcher.unit_sizes(), default=0)
        if not unit:
            return request
        if request.prompt_tokens <= INLINE_TOKENS:
            return with_chain(request, model.name, unit)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._large_renders, with_chain, request, model.name, unit)

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
            lines = model.dispatcher.replicas()
            self.meter.replicas(model.pool, [line["health"] for line in lines])
            self.meter.metrics.without_affinity(model.pool, sum("no_affinity" in line for line in lines))
            size = model.frontend.cache_size()
            if size is not None:
                self.meter.metrics.frontend_cache(
                    model.name, held_bytes=size.held_bytes, bound_bytes=size.bound_bytes
                )
        if self._feed is not None:
            self.meter.metrics.feed(self.region, self._feed.figures())
        self.meter.peers((peer.region, peer.up, peer.round_trip_s) for peer in self._peers)
        return self.meter.text()

    def status(self) -> dict[str, Any]:
        """What `dayzero status` shows."""
        readiness = self.readiness()
        return {
            "region": self.region,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "models": [
                {"model": model.name, "replicas": model.dispatcher.replicas()} for model in self._canonical
            ],
            "cache": self._hits.describe(self._clock()),
            "gateway": {
                "in_flight": len(self._in_flight),
                "requests_total": self._in_flight.admitted_total,
                "uptime_s": round(self._clock() - self._started_s, 1),
            },
            "regions": self._peers.status(),
            **({"feed": self._feed.status()} if self._feed is not None else {}),
        }

    def _note_answer(self, settlement: Settlement) -> None:
        if settlement.completion_tokens and settlement.model in self._canaries:
            self._canaries[settlement.model].answered()

    def _note_cache(self, settlement: Settlement) -> None:
        trail = settlement.trail
        if trail is None or trail.last is None or trail.last.cached_tokens is None:
            return
        outcome = Outcome(trail.prompt_tokens, trail.last.cached_tokens, trail.last.predicted_cached_tokens)
        self._hits = self._hits.with_outcome(outcome, self._clock())

    async def _send_canary(self, model: ServedModel) -> None:
        prompt = await self.render(model, lambda: CANARY, scope=CANARY_SALT)
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
