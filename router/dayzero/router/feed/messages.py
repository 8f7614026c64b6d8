"""What replicas write into their region's stream, and how it is read back.

- One byte of version, then MessagePack: an array of a tag and the fields. No token ids, no prompts, no engine's
  hashes: only 16-byte chain hashes.
- Each message names the replica and its incarnation. `sequence` counts the batches of an incarnation from 1; what is
  not a batch carries the number of the last one, so that a loss shows even when nothing else is said.
- What comes from the store is outside input: bounded before it is parsed, checked while it is; else MessageError.
"""

from typing import Annotated, Final

import msgspec

from dayzero.router.chain import HASH_BYTES
from dayzero.router.changes import Change, Cleared, Held, Life, Stored
from dayzero.router.feed.errors import MessageError

VERSION: Final = b"\x01"
MAX_MESSAGE_BYTES: Final = 8 << 20
"""A batch is cut at 64 KiB; a single change may be longer, a million tokens' in one run 0.5 MB."""
MAX_SNAPSHOT_BYTES: Final = 256 << 20
"""20 bytes a block: 13 million blocks."""
MAX_GROUPS: Final = 1024
MAX_UNITS: Final = 1 << 32
UNITS_BYTES: Final = 4

MAX_NAME_LENGTH: Final = 256

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Said(msgspec.Struct, frozen=True, array_like=True):
    replica: Name
    incarnation: Name
    sequence: Sequence
    at_s: float
    """When it happened (a batch: its first change), in seconds of the replica's wall clock."""


class Hello(_Said, frozen=True, array_like=True, tag="hello"):
    """Said at the start, now and then, and whenever somebody may not know it."""

    life: Life


class Batch(_Said, frozen=True, array_like=True, tag="batch"):
    """The changes since the batch before, oldest first."""

    changes: tuple[Change, ...]


class Beat(_Said, frozen=True, array_like=True, tag="beat"):
    """Nothing happened, and the replica is there."""


class Mark(_Said, frozen=True, array_like=True, tag="mark"):
    """A snapshot lies in the store that stands for the batches up to `sequence`, or for more."""


class Goodbye(_Said, frozen=True, array_like=True, tag="goodbye"):
    """The replica ends."""


Message = Hello | Batch | Beat | Mark | Goodbye


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """All that a replica holds after the batch `sequence`."""

    life: Life
    sequence: Sequence
    held: tuple[Held, ...]


_encoder = msgspec.msgpack.Encoder()
_messages = msgspec.msgpack.Decoder(Message)
_snapshots = msgspec.msgpack.Decoder(Snapshot)


def encode(message: Message | Snapshot) -> bytes:
    return VERSION + _encoder.encode(message)


def decode(raw: bytes) -> Message:
    """Raises MessageError."""
    try:
        message = _messages.decode(_body(raw, MAX_MESSAGE_BYTES))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"A message in the feed cannot be read: {_what(error)}.") from None
    if isinstance(message, Batch):
        for change in message.changes:
            if isinstance(change, Cleared):
                continue
            if len(change.hashes) % HASH_BYTES:
                raise MessageError("A change in the feed has a hash that is not 16 bytes.")
            if not 0 <= change.group < MAX_GROUPS:
                raise MessageError("A change in the feed names no cache group.")
            if isinstance(change, Stored) and not 0 < change.units < MAX_UNITS:
                raise MessageError("A change in the feed has a depth that no prompt has.")
    elif isinstance(message, Hello):
        _check_life(message.life, message.replica, message.incarnation)
    return message


def decode_snapshot(raw: bytes) -> Snapshot:
    """Raises MessageError."""
    try:
        snapshot = _snapshots.decode(_body(raw, MAX_SNAPSHOT_BYTES))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"A snapshot cannot be read: {_what(error)}.") from None
    _check_life(snapshot.life, snapshot.life.replica, snapshot.life.incarnation)
    for held in snapshot.held:
        hashes, torn = divmod(len(held.hashes), HASH_BYTES)
        if torn or len(held.units) != hashes * UNITS_BYTES or not 0 <= held.group < MAX_GROUPS:
            raise MessageError("A snapshot's hashes and depths do not go together.")
    return snapshot


def size_bytes(change: Change) -> int:
    """About what a change takes on the wire and in memory."""
    return 16 if isinstance(change, Cleared) else 16 + len(change.hashes)


def _body(raw: bytes, limit_bytes: int) -> memoryview:
    if len(raw) > limit_bytes:
        raise MessageError(f"{len(raw)} bytes in the feed are more than a message may have ({limit_bytes}).")
    if raw[:1] != VERSION:
        raise MessageError(f"Version {raw[:1].hex() or 'nothing'} of the feed is not {VERSION.hex()}.")
    return memoryview(raw)[1:]


def _check_life(life: Life, replica: str, incarnation: str) -> None:
    if (life.replica, life.incarnation) != (replica, incarnation):
        raise MessageError("A hello tells of another replica than the one that says it.")
    if max(len(life.replica), len(life.incarnation), len(life.model)) > MAX_NAME_LENGTH:
        raise MessageError("A hello has a name that is too long.")


def _what(error: Exception) -> str:
    # msgspec's messages name types and places, never values.
    return str(error)[:200] if isinstance(error, msgspec.MsgspecError) else type(error).__name__
