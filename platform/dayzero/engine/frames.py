"""What a replica sends back, as bytes: token deltas, and an error as the last frame.

- One byte of kind, then MessagePack. An engine's error is data, not a traceback: it crosses Ray (and, between
  regions, HTTP) with its kind, message and fields, and is raised again on the other side.
- What an error says is cut to a bound where it is written, and refused above it where it is read.
- A kind that this side does not know is raised as EngineError, so that a newer replica can fail in new ways.
"""

from typing import Annotated

import msgspec

from dayzero.engine import errors
from dayzero.engine.errors import EngineError, EngineProtocolError
from dayzero.engine.types import UNREADABLE, TokenDelta
from dayzero.errors import DayzeroError, InvalidRequestError

_DELTA = b"d"
_ERROR = b"e"
MAX_MESSAGE = 4096
MAX_WORD = 256
"""Characters."""

_Word = Annotated[str, msgspec.Meta(max_length=MAX_WORD)]


class _Error(msgspec.Struct, frozen=True, array_like=True):
    kind: _Word
    message: Annotated[str, msgspec.Meta(max_length=MAX_MESSAGE)]
    param: _Word | None
    code: _Word | None
    retry_after_s: float | None


_kinds: dict[str, type[DayzeroError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, EngineError | InvalidRequestError)
}
_encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(_Error).decode


def encode_delta(delta: TokenDelta) -> bytes:
    return _DELTA + delta.encode()


def encode_error(error: DayzeroError) -> bytes:
    kind = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _kinds), EngineError.__name__)
    message, param, code = error.message[:MAX_MESSAGE], _word(error.param), _word(error.code)
    return _ERROR + _encode(_Error(kind, message, param, code, error.retry_after_s))


def _word(text: str | None) -> str | None:
    return None if text is None else text[:MAX_WORD]


def decode(frame: bytes) -> TokenDelta:
    """Raises the error that the frame carries, or EngineProtocolError."""
    if frame[:1] == _DELTA:
        return TokenDelta.decode(frame[1:])
    if frame[:1] != _ERROR:
        raise EngineProtocolError(f"a frame of unknown kind {frame[:1]!r}")
    try:
        error = _decode_error(frame[1:])
    except UNREADABLE as e:
        raise EngineProtocolError(f"an error frame that cannot be read: {e}") from e
    kind = _kinds.get(error.kind, EngineError)
    raise kind(error.message, param=error.param, code=error.code, retry_after_s=error.retry_after_s)


def merge(deltas: list[TokenDelta]) -> TokenDelta:
    """Consecutive deltas as one (at least one)."""
    if len(deltas) == 1:
        return deltas[0]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    last = deltas[-1]
    return TokenDelta(
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprobs) if any(delta.logprobs is not None for delta in deltas) else None,
        finish=last.finish,
        usage=next((delta.usage for delta in reversed(deltas) if delta.usage), None),
        times=next((delta.times for delta in reversed(deltas) if delta.times), None),
        kv_transfer=last.kv_transfer,
    )
