"""A replica's side of the feed: its engine's KV events, told in chain hashes through its region's store.

- The translation is proved first: the engine serves a probe prompt in two turns, and every block of it must then
  stand where its chain says. An engine that fails, in whatever way, serves all the same; it tells nothing, the
  router credits it with nothing, and its log, its status and a metric say so.
- Telling holds up no request: the publisher's queue is bounded, and a store that is away is its own affair.
- A feed that fails later says goodbye: what was told of this replica must not stand for what it holds no longer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dayzero.engine.chains import chain_of
from dayzero.engine.errors import EngineError
from dayzero.engine.kv_events import KVEventBatch
from dayzero.engine.protocol import Engine
from dayzero.engine.translation import ChainTranslator, life_of
from dayzero.engine.translation_probe import Proof, Verdict, probe
from dayzero.engine.types import EngineRequest, Sampling, pack_ids
from dayzero.errors import DayzeroError
from dayzero.router.feed import Publisher, Store

log = logging.getLogger(__name__)

PROBE_SALT = "probe"
"""Not a tenant's: nobody shares the probe's prefix."""
_FIRST_ID, _IDS = 16, 1000
"""The probe's ids: small ones, which every vocabulary has."""
EVENTS_WITHIN_S = 10.0
"""For the probe's events to arrive; vLLM's come within milliseconds."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """Whether requests may be sent here for what is cached. `reason`: for people."""

    proved: bool
    reason: str


class CacheFeed:
    """`start` once the engine runs; `stop` before it ends."""

    def __init__(
        self,
        engine: Engine,
        *,
        replica: str,
        region: str,
        store_url: str,
        events_within_s: float = EVENTS_WITHIN_S,
    ) -> None:
        self._engine = engine
        self._events_within_s = events_within_s
        self._replica = replica
        self._region = region
        self._store = Store(store_url)
        self._translator: ChainTranslator | None = None
        self._publisher: Publisher | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._told = asyncio.Event()
        """A batch came."""
        self.affinity = Affinity(proved=False, reason="not proved yet")

    async def start(self) -> None:
        """Returns once the translation is proved or refused."""
        try:
            self._translator = ChainTranslator(life_of(self._engine.info, self._replica))
        except EngineError as e:
            self._refuse(e.message)
            return
        self._run(self._follow(self._translator, self._engine.kv_events()))
        try:
            proof = await self._prove(self._translator)
        except Exception:
            log.exception("the proof of replica %s failed in a way it should not", self._replica)
            self._refuse("the proof of its events failed; the replica's log has the cause")
            return
        if not proof.ok:
            self._refuse(proof.words)
            return
        self.affinity = Affinity(proved=True, reason=proof.words)
        self._publisher = Publisher(
            self._store, region=self._region, life=self._translator.life, held=self._translator.held
        )
        self._run(self._publisher.run())

    def admit(self, request: EngineRequest) -> None:
        """Before the engine gets the request."""
        if self._translator is not None:
            self._translator.admit(request)

    async def stop(self) -> None:
        """Says goodbye to the gateways, if the store takes it in time."""
        await self._say_goodbye()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def describe(self) -> dict[str, Any]:
        """For status pages."""
        told: dict[str, Any] = {"proved": self.affinity.proved, "reason": self.affinity.reason}
        if self._translator is not None:
            told["unresolved"] = self._translator.unresolved
        if self._publisher is not None:
            status = self._publisher.status()
            told |= {"connected": status.connected, "sequence": status.sequence}
        return told

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(self._watched(work)))

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("the feed of replica %s failed", self._replica)
            self._refuse("its feed failed; the replica's log has the cause")
            await self._say_goodbye()

    async def _say_goodbye(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close()

    def _refuse(self, why: str) -> None:
        self.affinity = Affinity(proved=False, reason=why)
        log.error("replica %s gets no requests for what it has cached: %s", self._replica, why)

    async def _follow(self, translator: ChainTranslator, batches: AsyncIterator[KVEventBatch]) -> None:
        async for batch in batches:
            changes = translator.translate(batch)
            self._told.set()
            if changes and self._publisher is not None:
                self._publisher.put(changes)

    async def _prove(self, translator: ChainTranslator) -> Proof:
        """Serves the probe: its first two blocks, then all of it."""
        layout = translator.life.layout
        blocks = 4 if self._engine.info.max_model_tokens > 4 * layout.block_tokens + 8 else 2
        tokens = blocks * layout.block_tokens + min(8, layout.block_tokens - 1)
        if tokens + 1 > self._engine.info.max_model_tokens:
            return Proof(
                Verdict.MISSING, "the context is shorter than two blocks: nothing can be reused here"
            )
        ids = pack_ids([_FIRST_ID + at * 7 % _IDS for at in range(tokens)])
        first_tokens = blocks // 2 * layout.block_tokens + 1
        whole = _request("probe-2", ids)
        try:
            await self._serve(_request("probe-1", ids[: 4 * first_tokens]))
            await self._serve(whole)
        except DayzeroError as e:
            return Proof(Verdict.MISSING, f"the engine did not serve the probe: {e.message}")
        chain = chain_of(whole, translator.life.model, layout.unit_tokens)
        deadline_s = asyncio.get_running_loop().time() + self._events_within_s
        while not (proof := probe(translator, chain, tokens)).ok:
            self._told.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._told.wait()
            except TimeoutError:
                break
        return proof

    async def _serve(self, request: EngineRequest) -> None:
        self.admit(request)
        async with aclosing(self._engine.generate(request)) as deltas:
            async for _ in deltas:
                pass


def _request(name: str, prompt_ids: bytes) -> EngineRequest:
    sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
    return EngineRequest(
        request_id=name,
        prompt_ids=prompt_ids,
        sampling=sampling,
        salt=PROBE_SALT,
    )
