"""vLLM 0.32's KV events as they stand on its socket, and their translation into the seam's.

- MessagePack into declared types only; a batch of another shape raises, it is never guessed at.
- vLLM tells of physical blocks: two requests that compute one prefix at once store its hash twice and remove it
  twice. The seam tells of residency (`LastCopies`).
- Hashes are the low 64 bits, unsigned; with bytes on the wire they are cut to that.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dayzero.engine.errors import EngineProtocolError
from dayzero.engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    GroupKind,
    KVEvent,
    KVEventBatch,
    LastCopies,
)
from dayzero.engine.types import pack_ids
from dayzero.router.changes import Tier

_HASH_MASK = (1 << 64) - 1
_STATE_KINDS = frozenset({"mamba"})
_TIERS = {"GPU": Tier.GPU, "CPU": Tier.HOST, "STORAGE": Tier.STORE}

WireHash = int | bytes


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[WireHash]
    parent_block_hash: WireHash | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[WireHash]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(_Batch)


def group_kind(spec_kind: str | None) -> GroupKind:
    """A cache spec's kind, as vLLM names it → ours."""
    return GroupKind.STATE if spec_kind in _STATE_KINDS else GroupKind.ATTENTION


class Translator:
    """Batches of one engine's life, in order. `kinds`: each cache group's kind, as the running engine resolved it."""

    def __init__(self, kinds: Mapping[int, GroupKind]) -> None:
        self._kinds = dict(kinds)
        self._copies = LastCopies()

    def translate(self, sequence: int, payload: bytes) -> KVEventBatch:
        """Raises EngineProtocolError for bytes of another shape."""
        try:
            batch = _decoder.decode(payload)
        except msgspec.MsgspecError as e:
            raise EngineProtocolError(f"a KV event batch of another shape than vLLM 0.32's: {e}") from e
        events = self._copies.pass_on(map(self._event, batch.events))
        return KVEventBatch(sequence=sequence, time_s=batch.ts, events=events)

    def forget(self) -> None:
        """Batches were lost: what is resident is unknown."""
        self._copies.forget()

    def _event(self, wire: _Stored | _Removed | _Cleared) -> KVEvent:
        match wire:
            case _Stored():
                return self._stored(wire)
            case _Removed():
                return self._removed(wire)
            case _Cleared():
                return AllBlocksCleared()

    def _stored(self, wire: _Stored) -> BlockStored:
        group, tier = wire.group_idx or 0, _tier(wire.medium)
        hashes = tuple(_hash(value) for value in wire.block_hashes)
        kind = self._kinds.get(group, group_kind(wire.kv_cache_spec_kind))
        return BlockStored(
            group=group,
            kind=kind,
            hashes=hashes,
            parent=None if wire.parent_block_hash is None else _hash(wire.parent_block_hash),
            block_tokens=wire.block_size,
            token_ids=pack_ids(wire.token_ids) if kind is GroupKind.ATTENTION else b"",
            salt=_salt(wire),
            tier=tier,
            request_id=wire.session_id or "",
            lora=wire.lora_name,
            more_than_tokens=_has_pictures(wire),
        )

    def _removed(self, wire: _Removed) -> BlockRemoved:
        hashes = tuple(_hash(value) for value in wire.block_hashes)
        return BlockRemoved(group=wire.group_idx or 0, hashes=hashes, tier=_tier(wire.medium))


def _hash(value: WireHash) -> EngineHash:
    number = int.from_bytes(value, "big") if isinstance(value, bytes) else value
    return EngineHash(number & _HASH_MASK)


def _tier(medium: str | None) -> Tier:
    return _TIERS.get(medium or "GPU", Tier.GPU)


def _salt(wire: _Stored) -> str:
    """The salt is the plain string among the first block's extra keys that is not the LoRA adapter's name."""
    if wire.parent_block_hash is not None or not wire.extra_keys or not wire.extra_keys[0]:
        return ""
    words = [key for key in wire.extra_keys[0] if isinstance(key, str)]
    if words and words[0] == wire.lora_name:
        words = words[1:]
    return words[0] if words else ""


def _has_pictures(wire: _Stored) -> bool:
    """Pictures are (identifier, offset) pairs among the extra keys; salt and LoRA are plain strings."""
    return any(not isinstance(key, str) for keys in wire.extra_keys or () for key in keys or ())
