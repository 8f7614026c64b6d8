"""Joiner: one replica's messages and snapshots in, what to do with its residency out. Pure: no clock, no store.

- Exact: what was applied is what the replica published, up to batch `sequence` of `incarnation`. Anything that could
  make it otherwise (a gap, a number that says that batches were missed, another incarnation) voids it and asks.
- While not exact, batches are kept, and a snapshot is joined only where it and the kept ones leave no hole up to the
  highest number heard of. One that does not join is not used; it is asked for again.
- Messages may come late, twice or in another order: a store that was frozen hands on what dead connections sent.
  An incarnation that was left is not believed again, unless it alone goes on talking.
- Only batches are sent again. Another message with a lower number than was heard shows that the higher one was not
  the replica's (or that this one is late): the lower one counts, all is void, and the replica is asked. So a false
  number costs one snapshot, never more.
- What is kept is bounded; beyond, a newer snapshot is needed.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from dayzero.router.changes import Change, Held, Life
from dayzero.router.feed.messages import Batch, Goodbye, Hello, Mark, Message, Snapshot, size_bytes

MAX_KEPT_BYTES: Final = 1 << 20
"""65,000 hashes: what is kept is applied in one step."""
RETIRED: Final = 8
RETURNS_AFTER: Final = 5
"""Messages in a row from an incarnation that was left, and none from the one that is known: it is the living one."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A life starts; nothing is known to be cached."""

    life: Life


@dataclass(frozen=True, slots=True)
class Apply:
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """What is known of its residency is void."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The replica is gone."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A snapshot is needed; `why` is for the counters."""

    why: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """A snapshot is needed, and one lies in the store."""


Action = Begin | Apply | Replace | Forget | Drop | Ask | Fetch


@dataclass(slots=True)
class Joiner:
    incarnation: str | None = None
    life: Life | None = None
    """Known once a hello or a snapshot told of it."""
    exact: bool = False
    sequence: int = 0
    """Exact: the last batch applied. Else: the highest number heard of since one that was taken back."""
    kept: list[Batch] = field(default_factory=list)
    """Not exact: batches without a hole between them."""
    kept_bytes: int = 0
    gone: bool = False
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=RETIRED))
    strangers: int = 0

    def push(self, message: Message) -> list[Action]:
        """Takes the next message of this replica."""
        if message.incarnation == self.incarnation and not self.gone:
            self.strangers = 0
            return self._heard(message)
        if message.incarnation in self.retired:
            self.strangers += 1
            if self.strangers < RETURNS_AFTER:
                return []
            self.retired.remove(message.incarnation)
        if isinstance(message, Goodbye):
            # Somebody who was never known leaves.
            self.retired.append(message.incarnation)
            return []
        return [*self._leave(message.incarnation), *self._meet(message)]

    def join(self, snapshot: Snapshot) -> list[Action]:
        """Takes what lay in the store as this replica's snapshot."""
        if self.exact or self.gone:
            return []
        life = snapshot.life
        if life.incarnation != self.incarnation:
            return [Ask("snapshot of another life")]
        first = self.kept[0].sequence if self.kept else 0
        last = self.kept[-1].sequence if self.kept else 0
        if snapshot.sequence < self.sequence and not (
            first <= snapshot.sequence + 1 and last == self.sequence
        ):
            return [Ask("snapshot too old")]
        actions: list[Action] = [Begin(life)] if self.life is None else []
        actions.append(Replace(snapshot.held))
        actions += [Apply(batch.changes) for batch in self.kept if batch.sequence > snapshot.sequence]
        self.life, self.exact = life, True
        self.sequence = max(self.sequence, snapshot.sequence)
        self._keep_none()
        return actions

    def _leave(self, successor: str) -> list[Action]:
        """The incarnation that was known is over; what came of it is void at once."""
        actions: list[Action] = [Forget()] if self.life is not None and not self.gone else []
        if self.incarnation not in {None, successor, *self.retired}:
            self.retired.append(str(self.incarnation))
        return actions

    def _meet(self, message: Message) -> list[Action]:
        self.incarnation, self.life = message.incarnation, None
        self.exact, self.gone, self.strangers, self.sequence = False, False, 0, 0
        self._keep_none()
        actions = self._heard(message)
        # A mark is fetched; an ask would have the replica put another one.
        return actions if isinstance(message, Mark) else [*actions, Ask("new life")]

    def _heard(self, message: Message) -> list[Action]:
        if isinstance(message, Goodbye):
            self.gone, self.exact, self.life = True, False, None
            self.retired.append(message.incarnation)
            self._keep_none()
            return [Drop()]
        if isinstance(message, Batch):
            return self._batch(message)
        actions: list[Action] = []
        if isinstance(message, Hello) and self.life is None:
            self.life = message.life
            actions.append(Begin(message.life))
        if message.sequence != self.sequence:
            if message.sequence < self.sequence:
                # These are never sent again, and numbers never go back: the higher one was not true.
                self._keep_none()
            actions += self._void()
            self.sequence = message.sequence
        if isinstance(message, Mark) and not self.exact:
            actions = [*(action for action in actions if not isinstance(action, Ask)), Fetch()]
        return actions

    def _batch(self, batch: Batch) -> list[Action]:
        if self.exact:
            if batch.sequence <= self.sequence:
                return []
            if batch.sequence == self.sequence + 1:
                self.sequence = batch.sequence
                return [Apply(batch.changes)]
            actions = self._void()
        else:
            actions = []
        self._keep(batch)
        self.sequence = max(self.sequence, batch.sequence)
        return actions

    def _void(self) -> list[Action]:
        """Batches were missed."""
        if not self.exact:
            return []
        self.exact = False
        return [Forget(), Ask("gap")]

    def _keep(self, batch: Batch) -> None:
        if self.kept and batch.sequence <= self.kept[-1].sequence:
            return
        if self.kept and batch.sequence != self.kept[-1].sequence + 1:
            self._keep_none()
        self.kept.append(batch)
        self.kept_bytes += sum(map(size_bytes, batch.changes))
        if self.kept_bytes > MAX_KEPT_BYTES:
            self._keep_none()

    def _keep_none(self) -> None:
        self.kept = []
        self.kept_bytes = 0
