"""The secrets of a local region, made at its first start and kept in the run folder, their owner's alone.

- The client's key and the operator's are kept as they are, since `curl` lines and `dayzero status` need them; the
  gateway reads their digests only.
- Whatever is missing is made, and only that; what is there is kept, so that clients go on working over restarts.
- A digest whose key is lost stays: it opens nothing for anybody, and other keys may have been added beside it.
- A gateway reads the digests and the secret once, when it starts. A region whose files are lost serves on with what
  it has read, until a gateway of it is started again.
"""

import secrets
from pathlib import Path

from dayzero.serving.local.folders import RunFolder
from dayzero.tenancy import Role, StoredKey, add_keys, load_or_make_secret, new_key
from dayzero.tenancy.private_file import create_private, read_private, write_private

_TENANT = "local"


def ensure_keys(run: RunFolder) -> None:
    """Raises TenancySetupError."""
    made: dict[Path, str] = {}
    lost_digests: list[StoredKey] = []
    for path, role in ((run.client_key, Role.CLIENT), (run.operator_key, Role.OPERATOR)):
        if not _holds_something(path):
            made[path] = new_key()
        elif _holds_something(run.key_digests):
            continue
        key = made.get(path) or read_private(path).decode().strip()
        lost_digests.append(StoredKey.of(key, _TENANT, role))
    if lost_digests:
        add_keys(run.key_digests, lost_digests)
    for path, key in made.items():  # after its digest: a key that a client can find always opens the gateway
        write_private(path, key.encode() + b"\n")
    create_private(run.ray_token, secrets.token_hex(32).encode())
    load_or_make_secret(run.secret)


def missing(run: RunFolder) -> list[Path]:
    """The files that `ensure_keys` would make."""
    files = (run.client_key, run.operator_key, run.key_digests, run.secret, run.ray_token)
    return [path for path in files if not _holds_something(path)]


def operator_key(run: RunFolder) -> str | None:
    """The key for the internal routes; None before the first start."""
    if not run.operator_key.exists():
        return None
    return read_private(run.operator_key).decode().strip()


def ray_token(run: RunFolder) -> str | None:
    """What Ray's dashboard asks for; None before the first start."""
    if not run.ray_token.exists():
        return None
    return read_private(run.ray_token).decode().strip()


def _holds_something(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
