"""The stream from one region's gateway to another's: frames to bytes and back.

    preamble  b"dzrg" version:u8
    frame     kind:u8 length:u32 payload checksum:u64          little-endian

- The checksum is xxh3-64 over kind, length and payload, seeded with the frame's number: a frame that was changed,
  lost, repeated or moved is noticed.
- Exactly one frame ends a stream: END, or ERROR. What comes after it, or a stream without it, is a fault.
- A payload is bounded by its kind before it is kept. Every fault is EngineProtocolError.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import xxhash

from dayzero.engine.errors import EngineProtocolError

VERSION = 1
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""A delta is some bytes a token; with 20 logprobs a token, and many tokens merged, some hundred kilobytes."""
MAX_ERROR_BYTES = 64 * 1024
MAX_OTHER_BYTES = 256
"""A replica's name, and nothing in the others."""

PREAMBLE = b"dzrg" + bytes([VERSION])
_HEAD = struct.Struct("<BI")
_CHECKSUM = struct.Struct("<Q")


class Kind(IntEnum):
    DELTA = 1
    """A token delta, as `dayzero.engine.frames` writes it."""
    ERROR = 2
    """An error as data, as `dayzero.engine.frames` writes it; the last frame."""
    HEARTBEAT = 3
    """Nothing to say, and alive."""
    PLACED = 4
    """Who takes the request: a replica's name."""
    END = 5
    """The answer is complete; the last frame."""


LAST = frozenset({Kind.ERROR, Kind.END})
_KINDS = frozenset(int(kind) for kind in Kind)
_MOST_BYTES = {int(Kind.DELTA): MAX_PAYLOAD_BYTES, int(Kind.ERROR): MAX_ERROR_BYTES}
_NAME = re.compile(rb"[A-Za-z0-9_.#-]{1,64}")


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    payload: bytes = b""


class Writer:
    """Frames of one stream as bytes; the first has the preamble before it."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = 0

    def frame(self, kind: Kind, payload: bytes = b"") -> bytes:
        """Raises EngineProtocolError where the payload is larger than the other side takes."""
        most_bytes = _MOST_BYTES.get(kind, MAX_OTHER_BYTES)
        if len(payload) > most_bytes:
            raise EngineProtocolError(f"a frame of {len(payload)} bytes; at most {most_bytes} are sent")
        content = _HEAD.pack(kind, len(payload)) + payload
        checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content, self._number))
        before = b"" if self._number else PREAMBLE
        self._number += 1
        return before + content + checksum


class Parser:
    """Bytes in any pieces → frames. `end` says that no more come."""

    __slots__ = ("_begun", "_held", "_number", "ended")

    def __init__(self) -> None:
        self._held = bytearray()
        self._begun = False
        self._number = 0
        self.ended = False
        """The last frame was read."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Each frame that is complete. Raises EngineProtocolError, after the frames before the fault."""
        held = self._held
        held += data
        if not self._begun:
            if not PREAMBLE.startswith(held[: len(PREAMBLE)]):
                raise EngineProtocolError(_not_ours(bytes(held[: len(PREAMBLE)])))
            if len(held) < len(PREAMBLE):
                return
            del held[: len(PREAMBLE)]
            self._begun = True
        while (frame := self._next()) is not None:
            yield frame

    def end(self) -> None:
        """Raises EngineProtocolError where the stream was cut short."""
        if not self.ended:
            raise EngineProtocolError("the stream was cut before its last frame")

    def _next(self) -> Frame | None:
        held = self._held
        if self.ended:
            if held:
                raise EngineProtocolError("bytes after the last frame")
            return None
        if len(held) < _HEAD.size:
            return None
        kind, length = _HEAD.unpack_from(held)
        most_bytes = _MOST_BYTES.get(kind, MAX_OTHER_BYTES)
        if length > most_bytes:
            raise EngineProtocolError(f"a frame of {length} bytes; at most {most_bytes} are taken")
        stop = _HEAD.size + length
        if len(held) < stop + _CHECKSUM.size:
            return None
        content = bytes(held[:stop])
        (checksum,) = _CHECKSUM.unpack_from(held, stop)
        if xxhash.xxh3_64_intdigest(content, self._number) != checksum:
            raise EngineProtocolError(f"frame {self._number} does not match its checksum")
        if kind not in _KINDS:
            raise EngineProtocolError(f"a frame of unknown kind {kind}; this side speaks version {VERSION}")
        del held[: stop + _CHECKSUM.size]
        self._number += 1
        frame = Frame(Kind(kind), content[_HEAD.size :])
        self.ended = frame.kind in LAST
        return frame


def replica_name(payload: bytes) -> str:
    """What PLACED carries. Raises EngineProtocolError: the name goes into headers and onto status pages."""
    if _NAME.fullmatch(payload) is None:
        raise EngineProtocolError("a replica's name that is none")
    return payload.decode("ascii")


def _not_ours(start: bytes) -> str:
    if start[: len(PREAMBLE) - 1] == PREAMBLE[:-1]:
        return f"a stream of version {start[-1]}; this side speaks {VERSION}"
    return "not a stream from a region's gateway"
