"""Hashes of a token sequence: one 64-bit hash per unit, each chained over everything before it.

- Deterministic across processes; sequences with different salts share no hash.
- The hash at a block's end is the hash of its last unit, so one chain names units and blocks alike.
- A sequence grows by generated ids; hashing is lazy and each unit is hashed once (1M tokens: about 10 ms).
"""

import xxhash

from dayzero.engine.kv_events import EngineHash

_TOKEN_BYTES = 4


class TokenChain:
    """Token ids as one growing little-endian uint32 buffer, with the hashes of its whole units, and whose it is."""

    __slots__ = ("_buffer", "_hashes", "_seed", "_unit_bytes", "request_id", "salt")

    def __init__(self, token_ids: bytes, *, unit_tokens: int, salt: str = "", request_id: str = "") -> None:
        self.salt = salt
        self.request_id = request_id
        self._buffer = bytearray(token_ids)
        self._unit_bytes = unit_tokens * _TOKEN_BYTES
        self._hashes: list[EngineHash] = []
        self._seed = xxhash.xxh3_64_intdigest(salt.encode())

    def __len__(self) -> int:
        """Tokens held."""
        return len(self._buffer) // _TOKEN_BYTES

    def append(self, token_id: int) -> None:
        self._buffer += token_id.to_bytes(_TOKEN_BYTES, "little")

    def hashes(self) -> list[EngineHash]:
        """The hashes of all whole units so far; the caller must not change the list."""
        size, hashes = self._unit_bytes, self._hashes
        whole = len(self._buffer) // size
        if len(hashes) < whole:
            parent = hashes[-1] if hashes else self._seed
            digest = xxhash.xxh3_64_intdigest
            with memoryview(self._buffer) as view:
                for at in range(len(hashes) * size, whole * size, size):
                    parent = digest(view[at : at + size], seed=parent)
                    hashes.append(EngineHash(parent))
        return hashes

    def token_bytes(self, start: int, end: int) -> bytes:
        """The ids from position `start` to `end` as a uint32 buffer."""
        return bytes(self._buffer[start * _TOKEN_BYTES : end * _TOKEN_BYTES])
