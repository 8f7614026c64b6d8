"""What every part of a fleet file is made of: frozen records, and leaf types that can say what they expect.

- A record refuses fields it does not know, and converts nothing: a number is not text, `yes` is not true.
- Every leaf type carries `Words`, so that a fault and the reference page use the same sentence.
- Units stand in the names of fields; sizes in bytes may be written `256 MiB`.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


@dataclass(frozen=True, slots=True)
class Words:
    """What a leaf type expects, in words."""

    text: str


class Record(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )


class Section(Record):
    """One of the three sections."""

    @property
    def hash(self) -> str:
        """Names the content: comments, the order of keys and spelled-out defaults do not change it."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(f"{type(self).__name__}:{content}".encode()).hexdigest()[:16]


_BYTE_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTES = re.compile(r"([0-9]{1,9}) ?(KiB|MiB|GiB|TiB)")


def _bytes(value: Any) -> Any:
    """`256 MiB` → 268435456; anything else is left for the type to judge."""
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) * _BYTE_UNITS[match[2]] if match else value


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float | bool):
        raise ValueError("expected text, a number, true or false")  # noqa: TRY004 pydantic reports ValueError only
    return value


def _redis_url(value: str) -> str:
    """What redis-py can connect to; anything else would be found out long after the start."""
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise ValueError("not a URL") from None
    by_path = url.scheme == "unix" and not url.hostname and len(url.path) > 1
    by_host = url.scheme in {"redis", "rediss"} and bool(url.hostname) and port != 0
    database = url.path.strip("/")
    if by_host and database and not (database.isascii() and database.isdigit()):
        raise ValueError("the database is not a number")
    if not (by_path or by_host) or url.fragment or any(letter.isspace() for letter in value):
        raise ValueError("not a store's URL")
    return value


Name = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
    Words("a name of at most 63 lower-case letters, digits and dashes"),
]
ModelName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/\[\]-]{0,127}$"),
    Words("a model's name: at most 128 letters, digits and any of . _ : / [ ] -"),
]
Host = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9.:-]{1,253}$"), Words("an address or a host's name, without a port")
]
BaseUrl = Annotated[
    str,
    Field(pattern=r"^https?://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?$"),
    Words("a URL of scheme, host and port only, as http://10.0.0.5:8000"),
]
Port = Annotated[int, Field(ge=1, le=65535), Words("a port, 1 to 65535")]
Count = Annotated[int, Field(ge=1, le=1_000_000), Words("a whole number, 1 or more")]
Tokens = Annotated[int, Field(ge=1, le=1 << 32), Words("a whole number of tokens, 1 or more")]
ByteCount = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(ge=1, le=1 << 50),
    Words("a number of bytes, 1 or more, as 268435456 or 256 MiB (KiB, MiB, GiB, TiB)"),
]
Seconds = Annotated[float, Field(gt=0, le=604_800), Words("seconds, more than 0")]
SmallSeconds = Annotated[float, Field(ge=0, le=3600), Words("seconds, 0 or more")]
Cpus = Annotated[float, Field(gt=0, le=4096), Words("a number of CPUs, more than 0")]
Factor = Annotated[float, Field(gt=0, le=1_000_000), Words("a factor, more than 0")]
Share = Annotated[float, Field(ge=0, le=1), Words("a share, 0 to 1")]
Rate = Annotated[float, Field(ge=0, le=1_000_000), Words("a number a second, 0 or more")]
Flag = Annotated[bool, Words("true or false")]
AbsolutePath = Annotated[
    str, Field(pattern=r"^/[^\x00]*$", max_length=4096), Words("an absolute path, beginning with /")
]
RedisUrl = Annotated[
    str,
    AfterValidator(_redis_url),
    Field(max_length=1024),
    Words("a store's URL: redis://HOST:PORT/0, rediss://HOST:PORT/0 for TLS, or unix:///PATH/TO.sock"),
]
Scalar = Annotated[Any, AfterValidator(_scalar), Words("text, a number, true or false")]
