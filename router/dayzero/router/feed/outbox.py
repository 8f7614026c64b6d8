"""Outbox: a replica's changes, numbered and packed, until the store has them. Pure: no clock, no store.

- Batches are numbered without a hole, in the order in which changes were put; a batch is sent again under its number
  until it is known to be in the stream.
- Bounded: what does not fit throws away everything that waits and skips a number, so that followers see the gap
  whatever comes next. Then a snapshot is due.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from dayzero.router.changes import Change, Life
from dayzero.router.feed.messages import Batch, encode, size_bytes

MAX_WAITING_BYTES: Final = 4 << 20
"""250,000 hashes: five minutes of a replica that prefills 100,000 tokens a second in units of 128."""
BATCH_BYTES: Final = 64 << 10
SEND_BYTES: Final = 1 << 20
"""At most about so much in one exchange, so that a slow link makes progress before the deadline."""


class Outbox:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._changes: list[tuple[Change, float]] = []
        self._packed: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self.sequence = 0
        """The number of the last batch, sent or not."""
        self.overflows = 0
        self.dropped_changes = 0

    def __bool__(self) -> bool:
        return bool(self._changes or self._packed)

    @property
    def unsent(self) -> bool:
        """Whether batches wait that are packed."""
        return bool(self._packed)

    def put(self, changes: Sequence[Change], now_s: float) -> bool:
        """False where it did not fit: all that waited is gone, and a snapshot is due."""
        size = sum(map(size_bytes, changes))
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self.dropped_changes += len(self._changes) + len(changes)
            self.overflows += 1
            self.clear()
            return False
        self._waiting_bytes += size
        self._changes += [(change, now_s) for change in changes]
        return True

    def clear(self) -> None:
        """Throws all away and skips a number."""
        self._changes = []
        self._packed.clear()
        self._waiting_bytes = 0
        self.sequence += 1

    def pack(self) -> None:
        """Numbers what was put."""
        batch: list[Change] = []
        size, since_s = 0, 0.0
        for change, at_s in self._changes:
            if batch and size + size_bytes(change) > BATCH_BYTES:
                self._number(batch, since_s)
                batch, size = [], 0
            if not batch:
                since_s = at_s
            batch.append(change)
            size += size_bytes(change)
        if batch:
            self._number(batch, since_s)
        self._changes = []
        self._waiting_bytes = sum(len(raw) for _, raw in self._packed)

    def head(self) -> list[tuple[int, bytes]]:
        """The oldest batches, with their numbers: what to send next."""
        taken: list[tuple[int, bytes]] = []
        size = 0
        for number, raw in self._packed:
            if taken and size + len(raw) > SEND_BYTES:
                break
            taken.append((number, raw))
            size += len(raw)
        return taken

    def sent(self, number: int) -> None:
        """The batches up to `number` are in the stream."""
        while self._packed and self._packed[0][0] <= number:
            self._waiting_bytes -= len(self._packed.popleft()[1])

    def _number(self, batch: list[Change], since_s: float) -> None:
        self.sequence += 1
        message = Batch(self._life.replica, self._life.incarnation, self.sequence, since_s, tuple(batch))
        self._packed.append((self.sequence, encode(message)))
