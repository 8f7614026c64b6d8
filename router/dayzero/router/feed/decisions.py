"""DecisionStore: keeps each decision's record for an hour, so that it can be explained from any gateway.

- `keep` takes no time, whatever the store does; a background task writes. What does not fit, or what the store does
  not take, is dropped and counted: a record is worth less than memory.
- `find` has a deadline of 50 ms; a store that does not answer by then has no record.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from dayzero.router.feed.errors import StoreGoneError
from dayzero.router.feed.keys import Keys
from dayzero.router.feed.store import PATIENT_S, QUICK_S, Command, Store, ask

TTL_S: Final = 3600
MAX_RECORD_BYTES: Final = 256 << 10
MAX_ID_LENGTH: Final = 256
MAX_WAITING: Final = 10_000
MAX_WAITING_BYTES: Final = 16 << 20
WRITE_AT_ONCE: Final = 256
WRITE_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class DecisionsStatus:
    waiting: int
    written: int
    dropped: int


class DecisionStore:
    """`run` until cancelled; `keep` and `find` also work before and after."""

    def __init__(self, store: Store, *, region: str) -> None:
        self._writes = store.link(PATIENT_S)
        self._reads = store.link(QUICK_S)
        self._keys = Keys(region)
        self._waiting: dict[str, bytes] = {}
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._written = self._dropped = 0

    def keep(self, request_id: str, record: bytes) -> None:
        """Never blocks, never raises. The latest record of a request is the one that stays."""
        self._waiting_bytes -= len(self._waiting.pop(request_id, b""))
        if (
            not _is_key(request_id)
            or len(record) > MAX_RECORD_BYTES
            or len(self._waiting) >= MAX_WAITING
            or self._waiting_bytes + len(record) > MAX_WAITING_BYTES
        ):
            self._dropped += 1
            return
        self._waiting[request_id] = record
        self._waiting_bytes += len(record)
        self._wake.set()

    async def find(self, request_id: str) -> bytes | None:
        """None where there is no record, or no store to ask."""
        if not _is_key(request_id):
            return None
        if (waiting := self._waiting.get(request_id)) is not None:
            return waiting
        try:
            found = await self._reads.call(lambda client: client.get(self._keys.decision(request_id)))
        except StoreGoneError:
            return None
        return found if isinstance(found, bytes) else None

    def status(self) -> DecisionsStatus:
        return DecisionsStatus(len(self._waiting), self._written, self._dropped)

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                await self._write()
                await asyncio.sleep(max(WRITE_EVERY_S, self._writes.breaker.wait_s(time.monotonic())))
        finally:
            await self._writes.close()
            await self._reads.close()

    async def _write(self) -> None:
        names = list(self._waiting)[:WRITE_AT_ONCE]
        if not names:
            self._wake.clear()
            return
        records = [(name, self._waiting[name]) for name in names]
        commands: list[Command] = [
            ("SET", self._keys.decision(name), record, "EX", TTL_S) for name, record in records
        ]

        try:
            await ask(self._writes, commands)
        except StoreGoneError:
            self._dropped += len(records)
        else:
            self._written += len(records)
        for name, record in records:
            # Unless a newer record took its place meanwhile.
            if self._waiting.get(name) is record:
                del self._waiting[name]
                self._waiting_bytes -= len(record)


def _is_key(request_id: str) -> bool:
    try:
        return 0 < len(request_id.encode()) <= MAX_ID_LENGTH
    except UnicodeEncodeError:
        return False
