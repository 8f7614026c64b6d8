"""API keys: who asks, from the credential and nothing else.

- A key is 256 random bits, so a plain SHA-256 of it cannot be searched; only digests are stored and held.
- Every lookup compares with every key in constant time; a wrong key takes as long as a right one.
- Neither a key nor any part of it is in a message, a repr or a log: `key_id` is the start of its digest.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dayzero.tenancy.errors import AuthenticationError, PermissionDeniedError, TenancySetupError

KEY_PREFIX = "dz-"
_KEY_BYTES = 32

_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# RFC 6750: one scheme word, spaces, one token68. 256 characters are four times what a key needs.
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/=-]{1,256})", re.IGNORECASE)


class Role(StrEnum):
    CLIENT = "client"
    """The public API."""
    OPERATOR = "operator"
    """The internal routes that people use: status. It cannot be used for the public API."""
    PEER = "peer"
    """The internal routes that other regions' gateways use: load, and work in tokens. No person has it."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who a key belongs to. `key_id` may be logged."""

    id: str
    role: Role
    key_id: str


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as it is kept. As a line: `sha256:DIGEST TENANT ROLE`."""

    digest: bytes = field(repr=False)
    tenant: str
    role: Role = Role.CLIENT

    @classmethod
    def of(cls, key: str, tenant: str, role: Role = Role.CLIENT) -> "StoredKey":
        if not _TENANT.fullmatch(tenant):
            raise TenancySetupError("a tenant is named by at most 63 lower-case letters, digits and dashes")
        return cls(_digest(key), tenant, role)

    @property
    def line(self) -> str:
        return f"sha256:{self.digest.hex()} {self.tenant} {self.role}"


def new_key() -> str:
    """A fresh key, to be shown once."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def read_lines(lines: Iterable[str], name: str) -> tuple[StoredKey, ...]:
    """Lines of `StoredKey.line`; blank ones and `#` comments are skipped. Raises TenancySetupError."""
    keys: list[StoredKey] = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if words:
            keys.append(_read_line(words, f"{name}:{number}"))
    if len({key.digest for key in keys}) < len(keys):
        raise TenancySetupError(f"{name}: holds the same key twice; remove one of the lines")
    return tuple(keys)


def _read_line(words: list[str], place: str) -> StoredKey:
    digest = words[0].removeprefix("sha256:")
    if not words[0].startswith("sha256:") or not _DIGEST.fullmatch(digest):
        raise TenancySetupError(
            f"{place}: expected sha256: and 64 hexadecimal digits; a key itself is never stored, only its digest"
        )
    if len(words) not in {2, 3} or not _TENANT.fullmatch(words[1]):
        raise TenancySetupError(f"{place}: expected 'sha256:DIGEST TENANT [ROLE]'")
    role = words[2] if len(words) == 3 else Role.CLIENT
    if role not in {*Role}:
        raise TenancySetupError(f"{place}: a role is one of {', '.join(Role)}")
    return StoredKey(bytes.fromhex(digest), words[1], Role(role))


class KeyRing:
    """The keys that are accepted. Immutable: a new file is a new ring."""

    def __init__(self, keys: Iterable[StoredKey]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} keys)"

    def authenticate(self, values: Sequence[str | bytes], role: Role = Role.CLIENT) -> Tenant:
        """All values of the request's Authorization header → its tenant.

        Raises AuthenticationError, or PermissionDeniedError where the key is one of another role.
        """
        candidate = _digest(bearer(values))
        found: StoredKey | None = None
        for key in self._keys:  # all of them, always
            if hmac.compare_digest(key.digest, candidate):
                found = key
        if found is None:
            raise AuthenticationError("Incorrect API key provided. Check the key, or ask for a new one.")
        if found.role is not role:
            raise PermissionDeniedError(f"This route needs a key with the role {role}.")
        return Tenant(found.tenant, found.role, found.digest.hex()[:12])


def bearer(values: Sequence[str | bytes]) -> str:
    """The token of exactly one `Bearer TOKEN`. Raises AuthenticationError."""
    if not values:
        raise AuthenticationError(
            "You didn't provide an API key. Send it in the header 'Authorization: Bearer YOUR_KEY'."
        )
    value = values[0]
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    match = _BEARER.fullmatch(text.strip(" \t"))
    if len(values) > 1 or match is None:
        raise AuthenticationError("Malformed Authorization header. Send exactly one 'Bearer YOUR_KEY'.")
    return match[1]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
