"""Cache salts: which requests may share cached prefixes.

- A salt comes from the authenticated tenant and the server's secret, never from the request: nobody can name or
  guess another tenant's.
- Every gateway of a fleet needs the same secret, else they share no prefixes. A new secret empties the caches.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from dayzero.tenancy.errors import TenancySetupError
from dayzero.tenancy.keys import Tenant
from dayzero.tenancy.private_file import create_private, read_private

SECRET_VARIABLE = "DAYZERO_SECRET"  # noqa: S105 the name of a variable
"""The secret in hexadecimal, for gateways that share no disk."""

_SECRET_BYTES = 32
_SALT_DIGITS = 32


class ServerSecret:
    """The fleet's secret. Its bytes are in no repr and no message."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < _SECRET_BYTES:
            raise TenancySetupError(f"the server's secret must be at least {_SECRET_BYTES} bytes")
        self._secret = secret

    def __repr__(self) -> str:
        return "ServerSecret(...)"

    def cache_salt(self, tenant: Tenant) -> str:
        """32 hexadecimal digits, the same for every key of a tenant."""
        name = tenant.id.encode()
        message = b"dayzero/cache-salt/1" + len(name).to_bytes(4, "big") + name
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()[:_SALT_DIGITS]


def load_or_make_secret(path: Path) -> ServerSecret:
    """The secret of a file that is the owner's alone, made at the first call. Raises TenancySetupError."""
    if not path.exists():
        create_private(path, secrets.token_hex(_SECRET_BYTES).encode() + b"\n")
    return _secret_of(read_private(path), str(path))


def secret_from_environment(environ: Mapping[str, str] = os.environ) -> ServerSecret | None:
    """The secret of `DAYZERO_SECRET`, or None where it is not set. Raises TenancySetupError."""
    text = environ.get(SECRET_VARIABLE)
    return None if text is None else _secret_of(text.encode(), SECRET_VARIABLE)


def _secret_of(text: bytes, name: str) -> ServerSecret:
    try:
        return ServerSecret(bytes.fromhex(text.decode("ascii")))
    except ValueError:
        raise TenancySetupError(
            f"{name}: is not hexadecimal; remove it and start again to make a new one"
        ) from None
