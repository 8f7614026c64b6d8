"""What another region's HTTP answer means: pure. One table of which answer is whose fault.

- An answer that is not ours (an HTML page of a proxy, another service on the port) never reaches a client as it is.
- 401, 403: our peer key. 503 of ours: no room. Another 5xx, 404, or no answer of ours: the region failed the request,
  another may serve it. Another 4xx: the request's own fault, which another region would find too.
"""

from typing import Any

import msgspec

from dayzero.engine.types import UNREADABLE
from dayzero.errors import DayzeroError, InvalidRequestError
from dayzero.gateway.errors import DeadlineError, RegionFullError, RegionLostError, RegionRefusedError

_FULL_CODES = frozenset({"engine_overloaded", "no_replica_available", "engine_draining"})
_MAX_RETRY_AFTER_S = 60.0
_MAX_TEXT = 512
FAILED_CODE = "region_failed"
"""Of a RegionLostError where somebody there did answer."""


def as_error(region: str, status: int, body: bytes, retry_after: str | None) -> DayzeroError:
    """The error that a request to `region` ends with, for any answer but its stream."""
    said = _ours(body)
    if status in (401, 403):
        return RegionRefusedError(
            f"The region {region} refuses this gateway's peer key (HTTP {status}); give both the same one."
        )
    if said is None or status == 404:
        words = f"The region {region} answers HTTP {status} where its stream should be."
        return RegionLostError(words, code=FAILED_CODE)
    message, code = _text(said, "message") or "no reason given", _text(said, "code")
    if status == 503 and code in _FULL_CODES:
        wait_s = _seconds(retry_after)
        return RegionFullError(f"The region {region} has no room: {message}", retry_after_s=wait_s)
    if status in (408, 504):
        return DeadlineError("The request took longer than this server allows.")
    if status >= 500:
        return RegionLostError(f"The region {region} failed with HTTP {status}: {message}", code=FAILED_CODE)
    return InvalidRequestError(message, param=_text(said, "param"), code=code)


def _ours(body: bytes) -> dict[str, Any] | None:
    """The `error` object of an answer in our shape."""
    try:
        error = msgspec.json.decode(body)["error"]
    except (*UNREADABLE, KeyError, TypeError):
        return None
    return error if isinstance(error, dict) else None


def _text(said: dict[str, Any], field: str) -> str | None:
    value = said.get(field)
    return value[:_MAX_TEXT] if isinstance(value, str) else None


def _seconds(text: str | None) -> float | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 6:
        return None
    return min(float(text), _MAX_RETRY_AFTER_S)
