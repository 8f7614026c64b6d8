"""The router's errors.

DayzeroError
├── NoReplicaError             503  nobody can take the request now; later somebody may
└── DigestError                502  a peer region sent a prefix digest of another version or shape
"""

from dayzero.errors import DayzeroError


class NoReplicaError(DayzeroError):
    """Raised by `place`; the message counts why each replica was passed over. `retry_after_s` is always set."""

    status = 503
    default_code = "no_replica_available"
    retryable = True


class DigestError(DayzeroError):
    """Raised by `PrefixDigest.decode`: the peer runs another version, or is no peer of ours."""

    status = 502
    default_code = "bad_digest"
