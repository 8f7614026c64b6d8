"""The secrets of the local regions, made at the first start and kept in the run folder, their owner's alone.

- Every region takes the same keys. The client's and the operator's are kept as they are, since `curl` lines and
  `dayzero status` need them, and the regions' own, with which they ask one another; of the others a gateway reads the
  digests only.
- Whatever is missing is made, and only that; what is there is kept, so that clients go on working over restarts.
- A digest whose key is lost stays: it opens nothing for anybody, and other keys may have been added beside it.
- A gateway reads the digests and the secret once, when it starts. A region whose files are lost serves on with what
  it has read, until a gateway of it is started again.
"""

import secrets
from pathlib import Path

from dayzero.serving.local.folders import FleetFolder
from dayzero.tenancy import Role, StoredKey, add_keys, load_or_make_secret, new_key
from dayzero.tenancy.private_file import create_private, read_key, write_private

_TENANT = "local"


def ensure_keys(folder: FleetFolder) -> None:
    """Raises TenancySetupError."""
    made: dict[Path, str] = {}
    lost_digests: list[StoredKey] = []
    for path, role in _roles(folder).items():
        if not _holds_something(path):
            made[path] = new_key()
        elif _holds_something(folder.key_digests):
            continue
        key = made.get(path) or read_key(path)
        lost_digests.append(StoredKey.of(key, _TENANT, role))
    if lost_digests:
        add_keys(folder.key_digests, lost_digests)
    for path, key in made.items():  # after its digest: a key that a client can find always opens the gateway
        write_private(path, key.encode() + b"\n")
    create_private(folder.ray_token, secrets.token_hex(32).encode())
    load_or_make_secret(folder.secret)


def missing(folder: FleetFolder) -> list[Path]:
    """The files that `ensure_keys` would make."""
    files = (*_roles(folder), folder.key_digests, folder.secret, folder.ray_token)
    return [path for path in files if not _holds_something(path)]


def operator_key(folder: FleetFolder) -> str | None:
    """The key for the internal routes; None before the first start."""
    if not folder.operator_key.exists():
        return None
    return read_key(folder.operator_key)


def ray_token(folder: FleetFolder) -> str | None:
    """What Ray's dashboard asks for; None before the first start."""
    if not folder.ray_token.exists():
        return None
    return read_key(folder.ray_token)


def _roles(folder: FleetFolder) -> dict[Path, Role]:
    return {
        folder.client_key: Role.CLIENT,
        folder.operator_key: Role.OPERATOR,
        folder.peer_key: Role.PEER,
    }


def _holds_something(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
