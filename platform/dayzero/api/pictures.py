"""A picture in a message: a base64 data URL → its bytes, digest, kind and size. No pixel is decoded.

- What it is and how large is read from its own first bytes, never from what the URL claims.
- Nothing is fetched: only data URLs are taken.
- PNG, JPEG, GIF and WebP; each side has at most `MAX_SIDE_PX`.
"""

import base64
import binascii
import hashlib
import re
import struct

from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import Image

MAX_SIDE_PX = 16_384
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers of a JPEG's frame, which hold its size."""
_CODE = "invalid_image"


def picture(url: str, param: str) -> Image:
    """Raises InvalidRequestError naming `param`."""
    match = _DATA_URL.match(url)
    if match is None:
        raise InvalidRequestError.of(
            param, "Send the picture as a data URL: `data:image/png;base64,…`.", code="unsupported_content"
        )
    try:
        content = base64.b64decode(url[match.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError.of(param, "The picture is not valid base64.", code=_CODE) from None
    try:
        kind, width_px, height_px = _size(content)
    except (struct.error, IndexError, LookupError):
        raise InvalidRequestError.of(
            param, "The picture is no PNG, JPEG, GIF or WebP, or it is cut off.", code=_CODE
        ) from None
    if not (0 < width_px <= MAX_SIDE_PX and 0 < height_px <= MAX_SIDE_PX):
        raise InvalidRequestError.of(
            param, f"The picture's sides must have 1 to {MAX_SIDE_PX:,} pixels.", code=_CODE
        )
    return Image(content, hashlib.sha256(content).digest(), width_px, height_px, f"image/{kind}")


def _size(content: bytes) -> tuple[str, int, int]:
    """Kind, width and height. Raises LookupError, IndexError or struct.error for what is none of the four."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png", *struct.unpack_from(">II", content, 16)
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "gif", *struct.unpack_from("<HH", content, 6)
    if content.startswith(b"\xff\xd8"):
        return "jpeg", *_jpeg(content)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "webp", *_webp(content)
    raise LookupError


def _jpeg(content: bytes) -> tuple[int, int]:
    """From segment to segment until the frame; each moves on by two bytes at least, so this is linear."""
    at = 2
    while True:
        if content[at] != 0xFF:
            raise LookupError
        marker = content[at + 1]
        if marker == 0xFF:  # fill
            at += 1
            continue
        if marker in _JPEG_SIZES:
            height_px, width_px = struct.unpack_from(">HH", content, at + 5)
            return width_px, height_px
        (length,) = struct.unpack_from(">H", content, at + 2)
        at += 2 + max(length, 2)


def _webp(content: bytes) -> tuple[int, int]:
    match content[12:16]:
        case b"VP8X":
            wide, high = content[24:27], content[27:30]
            if len(high) < 3:
                raise LookupError
            return int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", content, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            wide, high = struct.unpack_from("<HH", content, 26)
            return wide & 0x3FFF, high & 0x3FFF
    raise LookupError
