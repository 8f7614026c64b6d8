"""The ids of texts seen before, so that a growing conversation costs only its new part.

- One cache per tokenizer, so an entry is a scope's text under one vocabulary; control segments never come here.
- A scope finds only what it put there: what one tenant sent is not found by another, not even in time.
- Never more than `bound_bytes`, texts, ids and bookkeeping counted, and no scope more than a quarter of it. A scope
  over its share loses what it has not used for long; over the bound, the scope that has been idle longest does. So
  one tenant cannot take the cache from all others.
- Safe to share between threads. A batch takes the lock once.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock

from dayzero.frontend.kimi_k3.segment_scope import SCOPE_OVERHEAD_BYTES, SegmentScope, entry_bytes

SCOPE_SHARE = 4


@dataclass(frozen=True, slots=True)
class CacheStats:
    """`hits`, `misses`, `evicted` count texts since the start; the others are of now."""

    hits: int
    misses: int
    evicted: int
    entries: int
    scopes: int
    size_bytes: int
    bound_bytes: int


class SegmentCache:
    def __init__(self, bound_bytes: int) -> None:
        """`bound_bytes` 0: remember nothing."""
        self._bound_bytes = bound_bytes
        self._share_bytes = bound_bytes // SCOPE_SHARE
        self._scopes: OrderedDict[str, SegmentScope] = OrderedDict()
        self._size_bytes = 0
        self._hits = self._misses = self._evicted = 0
        self._lock = Lock()

    def get(self, scope: str, texts: Sequence[str]) -> list[bytes | None]:
        """Each text's ids, None where they are not known."""
        with self._lock:
            held = self._scopes.get(scope)
            if held is None:
                found: list[bytes | None] = [None] * len(texts)
            else:
                self._scopes.move_to_end(scope)
                found = held.find(texts)
            missed = found.count(None)
            self._misses += missed
            self._hits += len(texts) - missed
            return found

    def put(self, scope: str, items: Iterable[tuple[str, bytes]]) -> None:
        """What is larger than a scope's share is not kept."""
        most_bytes = self._share_bytes - SCOPE_OVERHEAD_BYTES
        fresh = [(text, ids) for text, ids in items if entry_bytes(text, ids) <= most_bytes]
        if not fresh:
            return
        with self._lock:
            held = self._scopes.get(scope)
            if held is None:
                held = self._scopes[scope] = SegmentScope()
                self._size_bytes += held.size_bytes
            self._scopes.move_to_end(scope)
            before_bytes = held.size_bytes
            for text, ids in fresh:
                held.add(text, ids)
                while held.size_bytes > self._share_bytes:
                    held.evict()
                    self._evicted += 1
            self._size_bytes += held.size_bytes - before_bytes
            self._shrink()

    def _shrink(self) -> None:
        while self._size_bytes > self._bound_bytes:
            scope, idlest = next(iter(self._scopes.items()))
            self._size_bytes -= idlest.size_bytes
            idlest.evict()
            self._evicted += 1
            if len(idlest):
                self._size_bytes += idlest.size_bytes
            else:
                del self._scopes[scope]

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                evicted=self._evicted,
                entries=sum(map(len, self._scopes.values())),
                scopes=len(self._scopes),
                size_bytes=self._size_bytes,
                bound_bytes=self._bound_bytes,
            )
