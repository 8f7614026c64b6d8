"""KVEventReader: reads a running vLLM's KV events, keeps the ledger, and hands batches to any number of readers.

- vLLM binds both sockets (Unix sockets in this engine's own folder); this side connects. Two connecting ends would
  see silence and no error.
- Sequences start at 0 with the engine. A gap is filled from vLLM's replay socket; what that no longer holds is
  lost: the ledger starts again from nothing, and readers see the gap in `sequence`.
- A reader has a bounded queue. When it is full the oldest batch goes: a slow reader sees a gap, and blocks nobody.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Self
from weakref import WeakSet

from zmq.asyncio import Context
from zmq.constants import DEALER, SUB
from zmq.error import ZMQError

from dayzero.engine.errors import EngineProtocolError
from dayzero.engine.kv_events import GroupKind, KVEventBatch, KVLedger
from dayzero.serving.engines.vllm_kv_wire import Translator

logger = logging.getLogger(__name__)

_QUEUE_BATCHES = 4096
_REPLAY_DEADLINE_S = 5.0
_END_OF_REPLAY = -1


class Subscription(AsyncIterator[KVEventBatch]):
    """One reader's batches, from its making on; ends when the engine stops."""

    def __init__(self, capacity: int = _QUEUE_BATCHES) -> None:
        self._queue: deque[KVEventBatch] = deque(maxlen=capacity)
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, batch: KVEventBatch) -> None:
        self._queue.append(batch)
        self._ready.set()

    def close(self) -> None:
        self._closed = True
        self._ready.set()

    async def aclose(self) -> None:
        self.close()
        self._queue.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> KVEventBatch:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._queue.popleft()


class KVEventReader:
    def __init__(self, endpoint: str, replay_endpoint: str, kinds: Mapping[int, GroupKind]) -> None:
        self.ledger = KVLedger()
        self.lost_batches = 0
        self._replay_endpoint = replay_endpoint
        self._kinds = dict(kinds)
        self._translator = Translator(kinds)
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._due = 0
        self._closed = False
        self._context = Context()
        self._socket = self._context.socket(SUB)
        self._socket.set_hwm(0)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._read(), name="vllm-kv-events")

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        if self._closed:
            subscription.close()
        else:
            self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._end_subscriptions()
        self._context.destroy(linger=0)

    def _end_subscriptions(self) -> None:
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()

    async def _read(self) -> None:
        try:
            while True:
                _topic, sequence, payload = await self._socket.recv_multipart()
                await self._receive(int.from_bytes(sequence, "big"), payload)
        except Exception:
            logger.exception("reading KV events ended: residency is unknown from here on")
            self._start_anew()
            self._end_subscriptions()

    async def _receive(self, sequence: int, payload: bytes) -> None:
        if sequence < self._due:
            return  # came by replay already
        if sequence > self._due:
            await self._fill(sequence)
        self._take(sequence, payload)

    async def _fill(self, until: int) -> None:
        """Replay the batches from the one due up to `until`; count what cannot be had."""
        first = self._due
        with suppress(TimeoutError, ZMQError):
            async with asyncio.timeout(_REPLAY_DEADLINE_S):
                for sequence, payload in await self._replay(first):
                    if self._due == sequence < until:
                        self._take(sequence, payload)
        if self._due < until:
            lost = until - self._due
            self.lost_batches += lost
            logger.warning("%d KV event batches from %d on are lost: residency starts anew", lost, self._due)
            self._start_anew()
            self._due = until

    async def _replay(self, first: int) -> list[tuple[int, bytes]]:
        batches: list[tuple[int, bytes]] = []
        with self._context.socket(DEALER) as socket:
            socket.linger = 0
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                _empty, _topic, sequence_bytes, payload = await socket.recv_multipart()
                sequence = int.from_bytes(sequence_bytes, "big", signed=True)
                if sequence == _END_OF_REPLAY:
                    return batches
                batches.append((sequence, payload))

    def _take(self, sequence: int, payload: bytes) -> None:
        self._due = sequence + 1
        try:
            batch = self._translator.translate(sequence, payload)
        except EngineProtocolError:
            logger.exception("KV event batch %d is lost", sequence)
            self.lost_batches += 1
            self._start_anew()
            return
        self.ledger.apply(batch.events)
        for subscription in list(self._subscriptions):
            subscription.put(batch)

    def _start_anew(self) -> None:
        self._translator.forget()
        self.ledger = KVLedger()
