"""Follower: keeps a gateway's residency as the replicas of its region publish it.

- Starts by noting where the stream ends and calling the roll: every replica puts a snapshot, which the joiner puts
  together with the batches that follow.
- What is known stays known while the store is away, and when it comes back empty: only a replica's own word voids
  its residency, and only its goodbye, or its long silence while others are heard, drops it.
- A loss shows in the numbers (a trimmed stream too): that replica alone is void, and asked until it is exact again.
- At most `MAX_REPLICAS` are followed: another takes the place of the longest silent, not of one that is well.
- Nothing that is read raises out of here. Long work lets the event loop go on every few milliseconds.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Any, Final, Protocol

from dayzero.router.changes import Change, Held, Life
from dayzero.router.feed.errors import KeyRefusedError, MessageError, StoreGoneError
from dayzero.router.feed.joiner import Action, Apply, Ask, Begin, Drop, Fetch, Forget, Joiner, Replace
from dayzero.router.feed.keys import Keys
from dayzero.router.feed.messages import MAX_SNAPSHOT_BYTES, Batch, Message, decode, decode_snapshot
from dayzero.router.feed.status import STALE_S, FeedStatus, ReplicaFeed, is_heard
from dayzero.router.feed.store import Store, ask
from dayzero.router.load import ReplicaId
from dayzero.router.silence import silent

log = logging.getLogger(__name__)

DEADLINE_S: Final = 1.0
BLOCK_S: Final = 0.5
READ_ENTRIES: Final = 256
SLICE_S: Final = 0.005
"""Then others on the event loop get their turn."""
ASK_AGAIN_S: Final = 1.0
ROLL_CALL_S: Final = 0.5
"""So long after a roll call nobody is asked by name."""
FETCHED_AT_ONCE: Final = 16
DROP_AFTER_S: Final = 30.0
FRESH_S: Final = 5.0
MAX_REPLICAS: Final = 2_048
SWEEP_S: Final = 1.0
START: Final = b"0-0"


class Index(Protocol):
    """What the follower needs of a Residency."""

    def begin(self, life: Life) -> None: ...
    def apply(self, replica: str, changes: Iterable[Change]) -> None: ...
    def replace(self, replica: str, held: Iterable[Held]) -> None: ...
    def forget(self, replica: str) -> None: ...
    def drop(self, replica: str) -> None: ...


@dataclass(slots=True)
class _Peer:
    """One replica as the follower knows it. `index`: where its life has begun."""

    joiner: Joiner
    heard_s: float
    ask_at_s: float
    index: Index | None = None


class Follower:
    """Lives in a gateway. `run` until cancelled; `residency_of` a model is None where the gateway serves none of it."""

    def __init__(
        self,
        store: Store,
        *,
        region: str,
        residency_of: Callable[[str], Index | None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._reads = store.link(DEADLINE_S)
        self._calls = store.link(DEADLINE_S)
        self._keys = Keys(region)
        self._residency_of = residency_of
        self._clock, self._wall = clock, wall
        self._peers: dict[str, _Peer] = {}
        """The longest silent first."""
        self._waiting: set[str] = set()
        self._fetches: set[str] = set()
        self._position: bytes | None = None
        self._idle_reads = 0
        self._ask_from_s = 0.0
        self._listening_since_s = self._tick_s = self._swept_s = clock()
        self._connected = False
        self._lag_s: float | None = None
        self._messages = self._skipped = self._gaps = self._snapshots = 0
        self._asked = self._failures = self._dropped = 0

    def status(self) -> FeedStatus:
        now_s = self._clock()
        replicas = {
            name: ReplicaFeed(
                peer.joiner.incarnation or "",
                peer.joiner.exact and now_s - peer.heard_s <= STALE_S,
                peer.joiner.sequence,
                now_s - peer.heard_s,
            )
            for name, peer in self._peers.items()
            if not peer.joiner.gone
        }
        return FeedStatus(
            connected=self._connected and is_heard(replicas),
            lag_s=self._lag_s,
            messages=self._messages,
            skipped=self._skipped,
            gaps=self._gaps,
            snapshots=self._snapshots,
            asked=self._asked,
            failures=self._failures,
            dropped=self._dropped,
            replicas=replicas,
        )

    async def run(self) -> None:
        try:
            while True:
                try:
                    entries = await self._read()
                except StoreGoneError as error:
                    self._lost(error)
                    if isinstance(error, KeyRefusedError) and self._position is not None:
                        # No stream any more: the one that takes its place is read from its beginning.
                        self._position = START
                    await asyncio.sleep(max(0.02, self._reads.breaker.wait_s(time.monotonic())))
                    continue
                self._found()
                await self._take(entries)
                try:
                    await self._fetch()
                    await self._ask()
                except StoreGoneError:
                    self._failures += 1
                await self._drop_silent()
        finally:
            await self._reads.close()
            await self._calls.close()

    async def _read(self) -> list[tuple[bytes, Any]]:
        if self._position is None:
            await self._call_the_roll()
        elif self._idle_reads >= 4:
            await self._check_position()

        block = ("XREAD", "COUNT", READ_ENTRIES, "BLOCK", int(BLOCK_S * 1000))
        answers = await ask(
            self._reads, [(*block, "STREAMS", self._keys.feed, self._position)], extra_s=BLOCK_S
        )
        entries = _entries(answers[0])
        self._idle_reads = 0 if entries else self._idle_reads + 1
        if entries:
            self._position = entries[-1][0]
        return entries

    async def _call_the_roll(self) -> None:
        newest = ("XREVRANGE", self._keys.feed, "+", "-", "COUNT", "1")
        call = ("SET", self._keys.roll_call, secrets.token_hex(8))
        answers = await ask(self._reads, [newest, call])
        self._position = answers[0][0][0] if answers[0] else START
        self._ask_from_s = self._clock() + ROLL_CALL_S

    async def _check_position(self) -> None:
        """A store that was replaced, or whose clock went back, may number new entries below those we read."""
        newest = ("XREVRANGE", self._keys.feed, "+", "-", "COUNT", "1")
        answers = await ask(self._reads, [newest])
        self._idle_reads = 0
        if answers[0] and _order(answers[0][0][0]) < _order(self._position or START):
            self._position = START

    async def _take(self, entries: list[tuple[bytes, Any]]) -> None:
        slice_s = time.perf_counter()
        for _, fields in entries:
            try:
                message = decode(_raw(fields))
            except MessageError as error:
                self._skipped += 1
                log.debug("a message in the feed was skipped: %s", error)
                continue
            self._messages += 1
            self._hear(message)
            if time.perf_counter() - slice_s > SLICE_S:
                await asyncio.sleep(0)
                slice_s = time.perf_counter()

    def _hear(self, message: Message) -> None:
        now_s, name = self._clock(), message.replica
        peer = self._peers.pop(name, None)
        if peer is None:
            if len(self._peers) >= MAX_REPLICAS and not self._make_room(now_s):
                self._skipped += 1
                return
            peer = _Peer(Joiner(), now_s, self._ask_from_s)
        self._peers[name] = peer
        peer.heard_s = now_s
        if isinstance(message, Batch):
            if self._is_foreign(peer) and message.incarnation == peer.joiner.incarnation:
                return
            self._lag_s = max(0.0, self._wall() - message.at_s)
        self._follow(name, peer, partial(peer.joiner.push, message))

    def _follow(self, name: str, peer: _Peer, decide: Callable[[], list[Action]]) -> None:
        try:
            self._do(name, peer, decide())
        except Exception:
            # What one replica says must not end the following of the others: start anew with it, a second later.
            log.exception("residency of a replica could not be kept; its snapshot is asked for")
            self._skipped += 1
            self._peers[name] = _Peer(Joiner(), peer.heard_s, self._clock() + ASK_AGAIN_S, peer.index)
            self._fetches.discard(name)
            self._waiting.add(name)

    def _do(self, name: str, peer: _Peer, actions: list[Action]) -> None:
        for action in actions:
            self._act(name, peer, action)
        joiner = peer.joiner
        if joiner.exact or joiner.gone or self._is_foreign(peer):
            self._waiting.discard(name)
            self._fetches.discard(name)
            peer.ask_at_s = self._ask_from_s
        else:
            self._waiting.add(name)

    def _act(self, name: str, peer: _Peer, action: Action) -> None:
        index = peer.index
        match action:
            case Begin(life):
                self._settle(name, peer, life)
            case Replace(held):
                self._snapshots += 1
                index = index or self._settle(name, peer, peer.joiner.life)
                if index is not None:
                    index.replace(name, held)
            case Apply(changes) if index is not None:
                index.apply(name, changes)
            case Forget() if index is not None:
                index.forget(name)
            case Drop():
                self._dropped += 1
                peer.index = None
                if index is not None:
                    index.drop(name)
            case Ask(why):
                self._gaps += why == "gap"
                peer.ask_at_s = min(peer.ask_at_s, self._clock() + ASK_AGAIN_S / 4)
            case Fetch():
                self._fetches.add(name)
            case _:
                pass

    def _settle(self, name: str, peer: _Peer, life: Life | None) -> Index | None:
        """Begins `life` where its model's residency is kept, and ends what was elsewhere."""
        index = self._residency_of(life.model) if life is not None else None
        if peer.index is not None and peer.index is not index:
            peer.index.drop(name)
        peer.index = index
        if index is not None and life is not None:
            index.begin(life)
        return index

    def _is_foreign(self, peer: _Peer) -> bool:
        life = peer.joiner.life
        return peer.index is None and life is not None and self._residency_of(life.model) is None

    async def _fetch(self) -> None:
        while self._fetches:
            names = [self._fetches.pop() for _ in range(min(FETCHED_AT_ONCE, len(self._fetches)))]
            for name, raw in zip(names, await self._get(names), strict=True):
                if not raw:
                    continue
                try:
                    snapshot = decode_snapshot(raw)
                except MessageError as error:
                    self._skipped += 1
                    log.debug("a snapshot was skipped: %s", error)
                    continue
                peer = self._peers.get(name)
                if peer is not None and snapshot.life.replica == name:
                    self._follow(name, peer, partial(peer.joiner.join, snapshot))
                await asyncio.sleep(0)

    async def _get(self, names: list[str]) -> list[Any]:
        # Bounded by what is asked for; one byte more shows that it is too long.
        gets: list[tuple[Any, ...]] = [
            ("GETRANGE", self._keys.snapshot(name), 0, MAX_SNAPSHOT_BYTES) for name in names
        ]
        return await ask(self._calls, gets, refusable=True)

    async def _ask(self) -> None:
        now_s = self._clock()
        names = [name for name in self._waiting if now_s >= self._peers[name].ask_at_s]
        if not names:
            return
        for name in names:
            self._peers[name].ask_at_s = now_s + ASK_AGAIN_S * (0.75 + 0.5 * random())  # noqa: S311 jitter
        self._asked += len(names)
        commands = [("SADD", self._keys.wanted, *names), ("EXPIRE", self._keys.wanted, 60)]
        # Replicas mend the key, and find themselves there when they are asked again.
        answers = await ask(self._calls, commands, refusable=True)
        self._failures += answers[0] is None

    def _make_room(self, now_s: float) -> bool:
        """The longest silent gives way; never one that is exact and was heard just now."""
        for name, peer in self._peers.items():
            if not peer.joiner.exact or now_s - peer.heard_s > FRESH_S:
                self._end(name)
                return True
        return False

    async def _drop_silent(self) -> None:
        now_s = self._clock()
        if now_s - self._tick_s > FRESH_S:
            # We did not listen ourselves.
            self._listening_since_s = now_s
        self._tick_s = now_s
        if now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        ages_s = {
            ReplicaId(name): now_s - max(peer.heard_s, self._listening_since_s)
            for name, peer in self._peers.items()
        }
        slice_s = time.perf_counter()
        for name in silent(ages_s, DROP_AFTER_S, FRESH_S):
            self._end(name)
            if time.perf_counter() - slice_s > SLICE_S:
                await asyncio.sleep(0)
                slice_s = time.perf_counter()

    def _end(self, name: str) -> None:
        peer = self._peers.pop(name)
        self._waiting.discard(name)
        self._fetches.discard(name)
        if peer.index is not None:
            self._dropped += 1
            peer.index.drop(name)

    def _lost(self, error: StoreGoneError) -> None:
        self._failures += 1
        if self._connected:
            log.warning("the feed is away, and what is known of it stays: %s", error)
        self._connected = False

    def _found(self) -> None:
        if not self._connected:
            self._connected = True
            self._listening_since_s = self._clock()


def _entries(answer: Any) -> list[tuple[bytes, Any]]:
    return list(answer[0][1]) if answer else []


def _raw(fields: Any) -> bytes:
    raw = fields.get(b"m") if isinstance(fields, dict) else None
    if not isinstance(raw, bytes):
        raise MessageError("An entry of the stream holds no message.")
    return raw


def _order(position: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in position.split(b"-"))
