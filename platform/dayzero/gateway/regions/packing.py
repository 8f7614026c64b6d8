"""A request made smaller for a far region: a long prompt then takes fewer round trips.

- A connection that is new or has rested sends some 14 kB, waits for the other side, then twice that, and so on: the
  48 kB of 12,000 token ids take three round trips, and the 20 kB that they are packed take two.
- Packing takes about 0.1 ms for 10 kB, so it is for regions that are further away than that, and for what does not
  fit into the first flight anyway.
- What is unpacked is bounded before it is made.
"""

import asyncio
import zlib

from dayzero.api.errors import BodyTooLargeError
from dayzero.errors import InvalidRequestError

ENCODING = "deflate"
"""As HTTP names it."""
FIRST_FLIGHT_BYTES = 14_000
FAR_S = 0.005
"""A round trip from which packing is worth its time."""
_FASTEST = 1
_LARGE_BYTES = 128 * 1024
"""Above this it is done off the event loop."""


def worth_it(body_bytes: int, round_trip_s: float | None) -> bool:
    return body_bytes > FIRST_FLIGHT_BYTES and round_trip_s is not None and round_trip_s >= FAR_S


async def pack(body: bytes) -> bytes:
    if len(body) < _LARGE_BYTES:
        return zlib.compress(body, _FASTEST)
    return await asyncio.to_thread(zlib.compress, body, _FASTEST)


async def unpack(packed: bytes, encoding: str | None, limit_bytes: int) -> bytes:
    """The body behind a content-encoding; None: as it is. Raises InvalidRequestError or BodyTooLargeError."""
    if encoding is None:
        return packed
    if encoding != ENCODING:
        raise InvalidRequestError.of("body", f"The content-encoding is {ENCODING}, or there is none.")
    if len(packed) < _LARGE_BYTES // 8:
        return _inflated(packed, limit_bytes)
    return await asyncio.to_thread(_inflated, packed, limit_bytes)


def _inflated(packed: bytes, limit_bytes: int) -> bytes:
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(packed, limit_bytes + 1)
    except zlib.error as e:
        raise InvalidRequestError("The body cannot be unpacked.", param="body") from e
    if len(body) > limit_bytes:
        raise BodyTooLargeError(
            f"The body is larger than the {limit_bytes:,} bytes that this server takes.", param="body"
        )
    if not reader.eof or reader.unused_data:
        raise InvalidRequestError("The body is not packed whole.", param="body")
    return body
