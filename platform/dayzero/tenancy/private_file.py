"""Files that only their owner may read: digests of keys, the server's secret.

- Written with mode 0600 from the first byte, whole or not at all; never left half-written.
- Refused on reading where group or others have any right.
"""

import os
import secrets
import stat
from pathlib import Path

from dayzero.tenancy.errors import TenancySetupError

_MAX_BYTES = 16 * 1024 * 1024


def read_private(path: Path) -> bytes:
    """Raises TenancySetupError."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TenancySetupError(f"{path}: is not a regular file")
            if status.st_mode & 0o077:
                raise TenancySetupError(f"{path}: others may read it; run: chmod 600 {path}")
            data = file.read(_MAX_BYTES + 1)
    except OSError as e:
        raise TenancySetupError(f"{path}: cannot be read: {e.strerror}") from e
    if len(data) > _MAX_BYTES:
        raise TenancySetupError(f"{path}: larger than {_MAX_BYTES} bytes")
    return data


def read_key(path: Path) -> str:
    """A file that holds one key as text. Raises TenancySetupError."""
    try:
        return read_private(path).decode("ascii").strip()
    except UnicodeDecodeError:
        raise TenancySetupError(
            f"{path}: holds no key, it is not text; copy it again, or remove it and `dayzero up`"
        ) from None


def write_private(path: Path, data: bytes) -> None:
    """Replaces the file. Raises TenancySetupError."""
    _write(path, data, replace=True)


def create_private(path: Path, data: bytes) -> bool:
    """Writes the file unless there is one; of several at once exactly one wins. Raises TenancySetupError."""
    return _write(path, data, replace=False)


def _write(path: Path, data: bytes, *, replace: bool) -> bool:
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                part.replace(path)
            else:
                os.link(part, path)
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        return False
    except OSError as e:
        raise TenancySetupError(f"{path}: cannot be written: {e.strerror}") from e
    return True
