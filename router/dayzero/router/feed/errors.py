"""The feed's errors. None of them reaches a request: what is in the store are hints.

DayzeroError
├── MessageError               500  bytes in the store are not a message of this version
├── StoreGoneError             503  the store did not answer in time, refused, or was not asked because it failed before
│   └── KeyRefusedError        503  what lies under a key is not what is kept there
└── StoreUrlError              500  a store's address is not one that can be used
"""

from dayzero.errors import DayzeroError


class MessageError(DayzeroError):
    """Raised for bytes from the store that are too long or of another shape or version. Count them and go on."""

    default_code = "feed_message"


class StoreGoneError(DayzeroError):
    """Raised where the store does not answer; go on with what is known."""

    status = 503
    default_code = "store_gone"
    retryable = True


class KeyRefusedError(StoreGoneError):
    """Raised where a key holds another type, or a stream that takes nothing more; it helps to delete the key."""


class StoreUrlError(DayzeroError):
    """Raised for a URL that is not redis://, rediss:// or unix://; says what is expected, never the URL itself."""

    default_code = "store_url"
