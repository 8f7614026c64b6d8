"""A peer region of a gateway: probed, believed for a short while, and left out when it fails.

- Each peer has a task and a connection pool of its own: one that hangs holds up nobody else.
- Slow is not dead: a probe without an answer is no evidence while frames come from there, or when it was this process
  that stood still.
- What a peer said of itself is its view until it is too old; then it is stale: not idle, and not dead either.
- A peer whose vocabulary of a model is another is not sent that model's requests: their ids would mean something else.
- The round trip is the shortest of the latest probes over an open connection: the rest of a probe is somebody's load.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dayzero.engine.types import EngineRequest
from dayzero.errors import DayzeroError
from dayzero.gateway.background import kept_up
from dayzero.gateway.errors import RegionLostError, RegionRefusedError
from dayzero.gateway.regions import health
from dayzero.gateway.regions.client import PeerClient
from dayzero.gateway.regions.info import KnownPrefixes, ModelInfo, PeerInfo, other_vocabulary
from dayzero.gateway.regions.peer_dispatch import PeerDispatch
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.router.inflight import InFlight
from dayzero.router.load import ReplicaId
from dayzero.router.regions import PeerView
from dayzero.telemetry import ForwardOutcome

log = logging.getLogger(__name__)

ROUND_TRIPS = 8
_WARM_PERIOD_S = 2.0
_DIGEST_TIMEOUT_S = 5.0
_OWN_STALL_S = 0.5
"""A timer that fires so late says more of this process than of the peer."""


class Observer(Protocol):
    """Who counts what happens between regions."""

    def region_chosen(self, region: str, why: str) -> None: ...

    def forwarded(self, region: str, outcome: ForwardOutcome) -> None: ...


@dataclass(frozen=True, slots=True)
class PeerAddress:
    region: str
    url: str


@dataclass(slots=True)
class _Digest:
    version: int
    prefixes: KnownPrefixes


class Peer:
    """One peer region. `reader` reads a digest's bytes; None: no digests are asked for."""

    def __init__(
        self,
        address: PeerAddress,
        key: str,
        policy: RegionsPolicy,
        *,
        reader: Callable[[bytes], KnownPrefixes] | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.region = address.region
        self._url = address.url
        self._connect = partial(PeerClient, address.region, key=key, connect_s=policy.connect_s)
        self._client = self._connect(address.url)
        self._left: list[PeerClient] = []
        self._policy = policy
        self._reader = reader
        self._clock = clock
        self._jitter = jitter
        self._health = health.Health()
        self._info: PeerInfo | None = None
        self._info_s: float | None = None
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._connected = False
        self._silent = False
        self._digests: dict[str, _Digest] = {}
        self._digests_due_s = 0.0
        self._book = InFlight()
        self._heard_s = float("-inf")
        self._open: set[PeerDispatch] = set()
        self._strangers: frozenset[str] = frozenset()
        """Why which models' tokens are not sent there, as it was logged last."""
        self.observer: Observer | None = None
        self.vocabularies: Mapping[str, str] = {}
        """This gateway's own, by model."""

    @property
    def up(self) -> bool:
        return self._health.why_not(self._clock()) is None

    @property
    def round_trip_s(self) -> float | None:
        return min(self._round_trips, default=None)

    @property
    def in_flight(self) -> int:
        return self._book.total

    def prefixes(self, model: str) -> KnownPrefixes | None:
        known = self._digests.get(model)
        return known.prefixes if known else None

    def view(self, model: str, reusable_tokens: int) -> PeerView:
        now_s = self._clock()
        told = self._info.model(model) if self._info else None
        stranger = other_vocabulary(self.vocabularies.get(model, ""), told)
        place = ReplicaId(self.region)
        return PeerView(
            region=self.region,
            why_down=stranger or self._health.why_not(now_s),
            silent=self._silent and not self._health.up and not stranger,
            at_s=self._info_s,
            serves=told is not None,
            full=told is not None and told.wait_s is None,
            replicas=told.able if told else 0,
            round_trip_s=self.round_trip_s or 0.0,
            wait_s=told.wait_s or 0.0 if told else 0.0,
            prefill_s_per_token=told.prefill_s_per_token if told else 0.0,
            reusable_tokens=reusable_tokens,
            unreported=self._book.unreported(place, self._info_s),
        )

    def dispatch(
        self, model: str, request: EngineRequest, *, predicted_s: float | None, avoid: tuple[str, ...]
    ) -> PeerDispatch:
        self._health = self._health.sent()
        dispatch = PeerDispatch(
            self._client,
            model,
            request,
            self._book.reserve(ReplicaId(self.region), request.prompt_tokens, self._clock()),
            policy=self._policy,
            predicted_s=predicted_s,
            round_trip_s=self.round_trip_s,
            avoid=avoid,
            on_first_token=self._answered,
            on_frames=self._heard,
            settled=lambda outcome, error: self._settled(dispatch, outcome, error),
        )
        self._open.add(dispatch)
        return dispatch

    # Probes

    async def run(self) -> None:
        """For ever: a probe each period, a digest when it changed, and open connections."""
        warming = asyncio.create_task(kept_up(f"warming connections to {self.region}", self._keep_warm))
        reading = asyncio.create_task(kept_up(f"reading digests of {self.region}", self._keep_digests))
        try:
            while True:
                began_s = self._clock()
                if self._health.probe_due(began_s):
                    await self.probe()
                rest_s = self._policy.probe_period_s - (self._clock() - began_s)
                await asyncio.sleep(max(0.0, rest_s))
        finally:
            for task in (warming, reading):
                task.cancel()
            await asyncio.gather(warming, reading, return_exceptions=True)

    async def probe(self) -> None:
        """One probe; what it finds is in `view`. Raises nothing of the peer's."""
        began_s = self._clock()
        # A region that is not in use may take the time to connect: over a long way, that is most of it.
        within_s = self._policy.probe_timeout_s + (0.0 if self._health.up else self._policy.connect_s)
        try:
            async with asyncio.timeout(within_s):
                info = await self._client.info()
        except TimeoutError:
            if self._heard_s < began_s and self._clock() - began_s < within_s + _OWN_STALL_S:
                self._silent = True
                self._note(self._failed_probe(f"no answer within {within_s:g} s"))
        except RegionRefusedError:
            self._silent = False
            self._note(health.refused(self._health, self._policy.health, self._clock(), self._jitter()))
        except DayzeroError as e:
            self._silent = False
            self._note(self._failed_probe(e.message))
        except Exception:
            log.exception("a probe of %s failed in a way it should not", self.region)
            self._note(self._failed_probe("the gateway's log has the cause"))
        else:
            now_s = self._clock()
            if self._connected:  # the first over a new connection holds its opening too
                self._round_trips.append(now_s - began_s)
            self._connected = True
            self._info, self._info_s = info, now_s
            self._note_vocabularies(info)
            self._note(health.probe_answered(self._health, self._policy.health))

    def move(self, url: str) -> None:
        """It is asked there from now on, as one that was never heard of; what runs ends where it began."""
        if url == self._url:
            return
        log.warning("region %s is asked at %s from now on", self.region, url)
        self._left.append(self._client)
        self._url, self._client = url, self._connect(url)
        self._health = health.Health()
        self._info, self._info_s, self._connected = None, None, False
        self._round_trips.clear()
        self._digests.clear()

    async def close(self) -> None:
        await asyncio.gather(*(client.aclose() for client in (*self._left, self._client)))

    def status(self) -> dict[str, Any]:
        """What `dayzero status` shows; figures that are not known are absent."""
        now_s = self._clock()
        why = self._health.why_not(now_s)
        line: dict[str, Any] = {
            "region": self.region,
            "url": self._url,
            "up": why is None,
            "in_flight": self.in_flight,
        }
        if why is not None:
            line["why"] = why
        if self.round_trip_s is not None:
            line["round_trip_ms"] = round(1000 * self.round_trip_s, 2)
        if self._info is not None and self._info_s is not None:
            line["age_s"] = round(now_s - self._info_s, 2)
            line["models"] = [
                _model_line(told, other_vocabulary(self.vocabularies.get(told.model, ""), told))
                for told in self._info.models
            ]
        return line

    def _failed_probe(self, why: str) -> health.Health:
        self._connected = False
        return health.probe_failed(self._health, self._policy.health, why)

    def _note_vocabularies(self, info: PeerInfo) -> None:
        """Once, until something of it changes."""
        found = (other_vocabulary(self.vocabularies.get(told.model, ""), told) for told in info.models)
        strangers = frozenset(filter(None, found))
        for why in sorted(strangers - self._strangers):
            log.warning("region %s is not sent some requests: %s", self.region, why)
        self._strangers = strangers

    def _note(self, after: health.Health) -> None:
        before, self._health = self._health, after
        if before.up != after.up:
            if after.up:
                log.warning("region %s is up", self.region)
            else:
                log.warning("region %s is left out: %s", self.region, after.why)
                for dispatch in tuple(self._open):
                    dispatch.region_is_down()

    async def _keep_warm(self) -> None:
        while True:
            if self._health.up:
                await self._client.warm(self._policy.warm_connections)
            await asyncio.sleep(_WARM_PERIOD_S)

    async def _keep_digests(self) -> None:
        while self._reader is not None:
            await asyncio.sleep(self._policy.digest_period_s)
            for told in self._info.models if self._info and self._health.up else ():
                known = self._digests.get(told.model)
                if told.digest is None:
                    self._digests.pop(told.model, None)
                elif known is None or known.version != told.digest:
                    await self._read_digest(told.model, told.digest, self._reader)

    async def _read_digest(self, model: str, version: int, reader: Callable[[bytes], KnownPrefixes]) -> None:
        try:
            async with asyncio.timeout(_DIGEST_TIMEOUT_S):
                data = await self._client.digest(model)
            self._digests[model] = _Digest(version, await asyncio.to_thread(reader, data))
        except (TimeoutError, DayzeroError, ValueError) as e:
            # A wrong depth misleads; without a digest the peer is weighed by its load alone.
            self._digests.pop(model, None)
            log.warning("the digest of %s cannot be read: %s", self.region, type(e).__name__)

    # Requests as evidence

    def _heard(self) -> None:
        self._heard_s = self._clock()

    def _answered(self) -> None:
        self._note(health.request_answered(self._health))

    def _settled(self, dispatch: PeerDispatch, outcome: ForwardOutcome, error: DayzeroError | None) -> None:
        self._open.discard(dispatch)
        if self.observer is not None:
            self.observer.forwarded(self.region, outcome)
        rules, now_s = self._policy.health, self._clock()
        match outcome:
            case ForwardOutcome.ANSWERED | ForwardOutcome.INVALID:
                after = health.request_answered(self._health)
            case ForwardOutcome.GIVEN_UP:
                after = health.request_given_up(self._health)
            case ForwardOutcome.REFUSED:
                after = health.refused(self._health, rules, now_s, self._jitter())
            case _:
                after = health.request_failed(self._health, rules, now_s, self._jitter())
                if outcome is ForwardOutcome.UNREACHED and isinstance(error, RegionLostError):
                    after = health.probe_failed(after, rules, error.message)
        self._note(after)


def _model_line(told: ModelInfo, stranger: str) -> dict[str, Any]:
    """`stranger`: why its tokens are not sent there."""
    line: dict[str, Any] = {"model": told.model, "replicas": told.health, "able": told.able}
    if stranger:
        line |= {"why": stranger, "not_sent": True}
    elif told.wait_s is None:
        line["why"] = told.why
    else:
        line["wait_s"] = round(told.wait_s, 4)
    return line
