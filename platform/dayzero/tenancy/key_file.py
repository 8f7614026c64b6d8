"""Where keys are kept: a file of digests, one key a line, or the environment with the same lines.

- The file is the owner's alone (`private_file`); the environment holds digests too, so it leaks nothing usable.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from dayzero.tenancy.errors import TenancySetupError
from dayzero.tenancy.keys import KeyRing, Role, StoredKey, new_key, read_lines
from dayzero.tenancy.private_file import read_private, write_private

KEYS_VARIABLE = "DAYZERO_API_KEYS"
"""Lines of `StoredKey.line`, separated by newlines or commas."""

_HEAD = "# API keys, as digests: sha256:DIGEST TENANT ROLE\n"


def load_keys(path: Path) -> KeyRing:
    """Raises TenancySetupError, for a file without a key too: a server that nobody can use is a mistake."""
    return _ring(_stored(path), str(path))


def keys_from_environment(environ: Mapping[str, str] = os.environ) -> KeyRing | None:
    """The ring of `DAYZERO_API_KEYS`, or None where it is not set. Raises TenancySetupError."""
    text = environ.get(KEYS_VARIABLE)
    if text is None:
        return None
    return _ring(read_lines(text.replace(",", "\n").splitlines(), KEYS_VARIABLE), KEYS_VARIABLE)


def issue_key(path: Path, tenant: str, role: Role = Role.CLIENT) -> str:
    """A new key, its digest added to the file, which is made if need be. Only the caller ever has the key."""
    key = new_key()
    add_keys(path, [StoredKey.of(key, tenant, role)])
    return key


def add_keys(path: Path, keys: Iterable[StoredKey]) -> None:
    """Adds the digests of known keys to the file, all or none; it is made if need be. Raises TenancySetupError."""
    stored = _stored(path) if path.exists() else ()
    lines = [entry.line for entry in (*stored, *keys)]
    write_private(path, (_HEAD + "\n".join(lines) + "\n").encode())


def _stored(path: Path) -> tuple[StoredKey, ...]:
    try:
        text = read_private(path).decode("ascii")
    except UnicodeDecodeError as e:
        raise TenancySetupError(f"{path}: is not plain ASCII (byte {e.start})") from None
    return read_lines(text.splitlines(), str(path))


def _ring(keys: tuple[StoredKey, ...], name: str) -> KeyRing:
    if not keys:
        raise TenancySetupError(f"{name}: holds no key")
    return KeyRing(keys)
