"""Tenancy's errors.

DayzeroError
├── AuthenticationError        401  no key, or not one of ours; a wrong key and an unknown one look the same
├── PermissionDeniedError      403  the key is ours, but not for this route
└── TenancySetupError          500  the key file or the server's secret cannot be used; only a start can meet it
"""

from dayzero.errors import DayzeroError


class AuthenticationError(DayzeroError):
    """Raised by `KeyRing.authenticate`. The message never holds what was sent."""

    status = 401
    type = "invalid_request_error"
    default_code = "invalid_api_key"


class PermissionDeniedError(DayzeroError):
    """Raised by `KeyRing.authenticate` for a key of another role."""

    status = 403
    type = "invalid_request_error"
    default_code = "permission_denied"


class TenancySetupError(DayzeroError):
    """Raised while keys or the secret are read or written; the message says what to do."""
