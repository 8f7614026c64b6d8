"""Publisher: tells a region's gateways what this replica caches, through the region's stream.

- `put` takes changes in no time, whatever the store does; a background task sends what was put within about 50 ms.
- Introduces itself (a hello, and a snapshot of all that it holds) at the start, when a gateway asks, when the roll
  call's word changed (somebody asks all, or the store lost everything), and after its own queue overflowed. Hellos
  are repeated now and then. Nothing else of the store is needed or believed.
- A snapshot stands for the batches numbered so far: `held()` is called in the step that numbered them. Whoever puts
  changes does so in the step that made them, or later; being told twice changes nothing.
- The stream is trimmed by entries, to as many as keep it within `MAX_STREAM_BYTES` at the size it was seen to have.
- A key under which somebody left something else is deleted after a few refusals in a row; then all is introduced
  again. What lies under the keys by which others ask never holds up batches.
- One event loop; no locks.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import random
from typing import Any, Final

from dayzero.router.changes import Change, Held, Life
from dayzero.router.feed.errors import KeyRefusedError, StoreGoneError
from dayzero.router.feed.keys import Keys
from dayzero.router.feed.messages import Beat, Goodbye, Hello, Mark, Snapshot, encode
from dayzero.router.feed.outbox import Outbox
from dayzero.router.feed.refusals import Refusals
from dayzero.router.feed.store import (
    PATIENT_S,
    Client,
    Command,
    Store,
    all_well,
    ask,
    but_refusals,
    is_refusal,
    send,
)

log = logging.getLogger(__name__)

BATCH_S: Final = 0.05
"""At least between two batches."""
LOOK_S: Final = 0.2
"""An idle replica looks so often whether it is asked; a gateway that starts is exact again within a second."""
BEAT_S: Final = 1.0
HELLO_S: Final = 30.0
MEASURE_S: Final = 5.0
SNAPSHOT_TTL_S: Final = 20
"""Who asked fetches it at once; a hundred of 10 MB must not lie there long."""
SNAPSHOT_SHARE: Final = 0.05
"""Of this replica's time at most so much goes into snapshots, however often it is asked."""
GOODBYE_S: Final = 0.5
MAX_ENTRIES: Final = 50_000
MIN_ENTRIES: Final = 256
MAX_STREAM_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    connected: bool
    sequence: int
    snapshots: int
    overflows: int
    dropped_changes: int
    failures: int


def entries_kept(length: int, used_bytes: int) -> int:
    """How many entries the stream may have, from how long and how large it is."""
    if length < 1 or used_bytes < 1:
        return MAX_ENTRIES
    return max(MIN_ENTRIES, min(MAX_ENTRIES, MAX_STREAM_BYTES * length // used_bytes))


class Publisher:
    """Lives in a replica. `run` until cancelled or closed; `held` says all that is cached now.

    `run` raises what `held` raises, and nothing else.
    """

    def __init__(
        self, store: Store, *, region: str, life: Life, held: Callable[[], tuple[Held, ...]]
    ) -> None:
        self._link = store.link(PATIENT_S)
        self._keys = Keys(region)
        self._life = life
        self._held = held
        self._outbox = Outbox(life)
        self._refusals = Refusals()
        self._wake = asyncio.Event()
        self._closing = False
        self._running: asyncio.Task[Any] | None = None
        self._word = b""
        self._asked = True
        self._introduce_from_s = 0.0
        self._beat_at_s = self._hello_at_s = self._measure_at_s = 0.0
        self._entries = MAX_ENTRIES
        self._snapshots = self._failures = 0
        self._connected = False

    def put(self, changes: Sequence[Change]) -> None:
        """Never blocks, never raises."""
        if not self._outbox.put(changes, time.time()):
            self._asked = True
        self._wake.set()

    def status(self) -> PublisherStatus:
        return PublisherStatus(
            connected=self._connected,
            sequence=self._outbox.sequence,
            snapshots=self._snapshots,
            overflows=self._outbox.overflows,
            dropped_changes=self._outbox.dropped_changes,
            failures=self._failures,
        )

    async def run(self) -> None:
        self._running = asyncio.current_task()
        while not self._closing:
            try:
                spoke = await self._exchange()
            except StoreGoneError as error:
                if isinstance(error, KeyRefusedError):  # only the stream's: the others' are no errors here
                    self._refusals.heard(self._keys.feed, refused=True)
                self._gone(error)
                await asyncio.sleep(max(BATCH_S, self._link.breaker.wait_s(time.monotonic())))
                continue
            if self._outbox.unsent:
                continue
            if spoke or self._asked:
                await asyncio.sleep(BATCH_S)
            if self._outbox or self._closing or (self._asked and self._may_introduce()):
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S * (0.5 + 0.5 * random())):  # noqa: S311 jitter
                    await self._wake.wait()

    async def close(self) -> None:
        """Says goodbye if the store listens, for `GOODBYE_S` at most, and stops `run`."""
        self._closing = True
        self._wake.set()
        running = self._running
        if running is not None and running is not asyncio.current_task():
            running.cancel()
            await asyncio.wait([running])
        with contextlib.suppress(StoreGoneError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                self._outbox.pack()
                messages = [raw for _, raw in self._outbox.head()]
                messages.append(encode(Goodbye(*self._said())))
                await ask(self._link, [self._add(raw) for raw in messages])
        await self._link.close()

    async def _exchange(self) -> bool:
        """One round trip: what there is to say, and what others ask. True where something was said."""
        self._wake.clear()
        now_s = time.monotonic()
        self._outbox.pack()
        batches = self._outbox.head()
        # What is not a batch carries the last number: nothing of that kind while batches wait for another exchange.
        complete = not batches or batches[-1][0] == self._outbox.sequence
        spoiled = self._refusals.given_up()
        self._asked |= self._keys.feed in spoiled
        mending: list[Command] = [("UNLINK", key) for key in spoiled]
        introduces = complete and self._asked and self._may_introduce()
        said = [self._add(raw) for _, raw in batches]
        if introduces:
            # Asked again meanwhile (a queue that overflowed) is asked again.
            self._asked = False
            said += self._introduction(now_s)
        elif complete:
            said += self._sign_of_life(now_s, idle=not batches)
        learning = [
            ("SREM", self._keys.wanted, self._life.replica),
            ("SET", self._keys.roll_call, secrets.token_hex(8), "NX"),
            ("GET", self._keys.roll_call),
        ]
        measuring = self._measuring(now_s)

        async def work(client: Client) -> list[Any]:
            answers = await send(client, [*mending, *said, *learning, *measuring])
            del answers[: len(mending)]
            for (number, _), answer in zip(batches, answers, strict=False):
                if isinstance(answer, Exception):
                    break
                self._outbox.sent(number)
            all_well(answers[: len(said)])
            but_refusals(answers[len(said) : len(said) + len(learning)])
            return answers[len(said) :]

        try:
            learnt = await self._link.call(work)
        except StoreGoneError:
            self._asked |= introduces
            self._beat_at_s = 0.0  # perhaps it was this one that got lost
            raise
        self._connected = True
        if said:
            self._refusals.heard(self._keys.feed, refused=False)
        if introduces:
            self._snapshots += 1
            self._hello_at_s = now_s + HELLO_S * (0.8 + 0.4 * random())  # noqa: S311 jitter
        if batches or introduces:
            self._beat_at_s = now_s + BEAT_S * (0.8 + 0.2 * random())  # noqa: S311 jitter
        self._learn(*learnt)
        return bool(said)

    def _measuring(self, now_s: float) -> list[Command]:
        """It may be forbidden to us: the one thing whose failure is none."""
        if now_s < self._measure_at_s:
            return []
        self._measure_at_s = now_s + MEASURE_S * (0.5 + random())  # noqa: S311 jitter
        return [("XLEN", self._keys.feed), ("MEMORY", "USAGE", self._keys.feed, "SAMPLES", "8")]

    def _sign_of_life(self, now_s: float, *, idle: bool) -> list[Command]:
        if now_s >= self._hello_at_s:
            self._hello_at_s = now_s + HELLO_S * (0.8 + 0.4 * random())  # noqa: S311 jitter
            return [self._add(encode(Hello(*self._said(), self._life)))]
        if idle and now_s >= self._beat_at_s:
            self._beat_at_s = now_s + BEAT_S * (0.8 + 0.2 * random())  # noqa: S311 jitter
            return [self._add(encode(Beat(*self._said())))]
        return []

    def _learn(self, wanted: Any, _: Any, word: Any, *measured: Any) -> None:
        self._refusals.heard(self._keys.wanted, refused=is_refusal(wanted))
        self._refusals.heard(self._keys.roll_call, refused=is_refusal(word))
        if not is_refusal(wanted) and wanted:
            self._asked = True
        if not is_refusal(word):
            self._asked |= word is None or bool(self._word and word != self._word)
            self._word = word or b""
        if measured and all(isinstance(figure, int) for figure in measured):
            self._entries = entries_kept(*measured)

    def _introduction(self, now_s: float) -> list[Command]:
        started_s = time.perf_counter()
        snapshot = encode(Snapshot(self._life, self._outbox.sequence, self._held()))
        took_s = time.perf_counter() - started_s
        self._introduce_from_s = now_s + max(BATCH_S, took_s / SNAPSHOT_SHARE)
        return [
            ("SET", self._keys.snapshot(self._life.replica), snapshot, "EX", SNAPSHOT_TTL_S),
            self._add(encode(Hello(*self._said(), self._life))),
            self._add(encode(Mark(*self._said()))),
        ]

    def _may_introduce(self) -> bool:
        return time.monotonic() >= self._introduce_from_s

    def _said(self) -> tuple[str, str, int, float]:
        return self._life.replica, self._life.incarnation, self._outbox.sequence, time.time()

    def _add(self, raw: bytes) -> Command:
        return "XADD", self._keys.feed, "MAXLEN", "~", self._entries, "*", "m", raw

    def _gone(self, error: StoreGoneError) -> None:
        self._failures += 1
        if self._connected:
            log.warning("the feed waits: %s", error)
        self._connected = False
