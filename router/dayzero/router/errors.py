"""The router's errors.

DayzeroError
└── NoReplicaError             503  nobody can take the request now; later somebody may
"""

from dayzero.errors import DayzeroError


class NoReplicaError(DayzeroError):
    """Raised by `place`; the message counts why each replica was passed over. `retry_after_s` is always set."""

    status = 503
    default_code = "no_replica_available"
    retryable = True
