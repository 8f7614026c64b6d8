"""Who may ask: API keys, and the cache salt that follows from them."""

from dayzero.tenancy.errors import AuthenticationError, PermissionDeniedError, TenancySetupError
from dayzero.tenancy.key_file import add_keys, issue_key, keys_from_environment, load_keys
from dayzero.tenancy.keys import KeyRing, Role, StoredKey, Tenant, new_key
from dayzero.tenancy.salt import ServerSecret, load_or_make_secret, secret_from_environment

__all__ = [
    "AuthenticationError",
    "KeyRing",
    "PermissionDeniedError",
    "Role",
    "ServerSecret",
    "StoredKey",
    "TenancySetupError",
    "Tenant",
    "add_keys",
    "issue_key",
    "keys_from_environment",
    "load_keys",
    "load_or_make_secret",
    "new_key",
    "secret_from_environment",
]
