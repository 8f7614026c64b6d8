"""What flows out of an engine that lives in this event loop: one request's deltas, and KV events to many readers.

- `DeltaStream` joins what was generated since the reader last looked: a slow reader gets fewer, larger deltas and
  never holds the engine up.
- `KVBroadcast` gives every reader all batches from the moment it asked; a reader that falls behind loses the
  oldest and sees the gap in `sequence`.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Self

from dayzero.engine.errors import EngineError
from dayzero.engine.kv_events import KVEvent, KVEventBatch
from dayzero.engine.types import EngineTimes, Finish, TokenDelta, TokenLogprob, Usage

_READER_BATCHES = 4096


class DeltaStream:
    """One writer, one reader. After `end` or `fail` nothing more is written."""

    __slots__ = ("_error", "_first", "_ids", "_last", "_logprobs", "_waiter")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._first: Usage | None = None
        self._last: tuple[Finish, Usage, EngineTimes] | None = None
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._last is None and self._error is None

    def write(self, token_id: int, logprob: TokenLogprob | None) -> None:
        self._ids.append(token_id)
        if logprob is not None:
            self._logprobs.append(logprob)
        self._wake()

    def begin(self, usage: Usage) -> None:
        """What the first delta says of usage; its completion tokens are those that delta carries."""
        self._first = usage

    def end(self, finish: Finish, usage: Usage, times: EngineTimes) -> None:
        self._last = (finish, usage, times)
        self._wake()

    def fail(self, error: EngineError) -> None:
        """The reader gets what was written, then the error."""
        self._error = error
        self._wake()

    async def read(self) -> TokenDelta:
        """The next delta, as soon as there is one; the error once all before it was read."""
        while not self._ids and self._last is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        ids, logprobs = tuple(self._ids), tuple(self._logprobs) or None
        self._ids.clear()
        self._logprobs.clear()
        if self._last is None:
            first, self._first = self._first, None
            usage = first and Usage(first.prompt_tokens, len(ids), first.cached_tokens)
            return TokenDelta(token_ids=ids, logprobs=logprobs, usage=usage)
        finish, usage, times = self._last
        return TokenDelta(token_ids=ids, logprobs=logprobs, finish=finish, usage=usage, times=times)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class KVReader:
    """One reader's batches; ends when the engine stops or the reader closes."""

    def __init__(self) -> None:
        self._batches: deque[KVEventBatch] = deque(maxlen=_READER_BATCHES)
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, batch: KVEventBatch) -> None:
        self._batches.append(batch)
        self._ready.set()

    def close(self) -> None:
        self._closed = True
        self._ready.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> KVEventBatch:
        while not self._batches:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._batches.popleft()

    async def aclose(self) -> None:
        self.close()


class KVBroadcast:
    """Batches of KV events, numbered from 1, to every reader that still exists."""

    def __init__(self) -> None:
        self._readers: weakref.WeakSet[KVReader] = weakref.WeakSet()
        self._sequence = 0
        self._closed = False

    def reader(self) -> KVReader:
        reader = KVReader()
        if self._closed:
            reader.close()
        self._readers.add(reader)
        return reader

    def publish(self, events: Sequence[KVEvent], time_s: float) -> None:
        self._sequence += 1
        batch = KVEventBatch(sequence=self._sequence, time_s=time_s, events=tuple(events))
        for reader in self._readers:
            reader.put(batch)

    def close(self) -> None:
        self._closed = True
        for reader in self._readers:
            reader.close()
