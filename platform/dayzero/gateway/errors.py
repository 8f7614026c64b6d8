"""The gateway's errors.

DayzeroError
├── ClientGoneError       499  the client left; nobody reads this answer, but counters do
├── BodyTimeoutError      408  the body did not arrive in time
├── DeadlineError         504  the request took longer than it may
├── OverloadedError       503  the gateway holds as many requests as it may
├── InternalError         500  our fault; the log has the cause under the request's id
├── InvalidRequestError
│   └── DecisionNotFoundError   404  no record is kept under this id
└── EngineError
    ├── EngineDeadError
    │   ├── RegionLostError     503  another region does not answer, or not as it should
    │   └── RegionRefusedError  503  another region does not take this gateway's peer key
    └── EngineOverloadedError
        └── RegionFullError     503  another region has no room
"""

from dayzero.engine.errors import EngineDeadError, EngineOverloadedError
from dayzero.errors import DayzeroError, InvalidRequestError


class ClientGoneError(DayzeroError):
    """Raised where the client's leaving is noticed."""

    status = 499
    default_code = "client_closed_request"


class BodyTimeoutError(DayzeroError):
    """Raised while a body is read: a client that sends a byte a second holds nothing for long."""

    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"


class DeadlineError(DayzeroError):
    """Raised when the request's time is over."""

    status = 504
    default_code = "timeout"


class OverloadedError(DayzeroError):
    """Raised at admission."""

    status = 503
    default_code = "engine_overloaded"


class DecisionNotFoundError(InvalidRequestError):
    """Raised for an id that no kept record has."""

    status = 404
    default_code = "decision_not_found"


class InternalError(DayzeroError):
    """Raised in place of any exception that is not one of ours."""

    default_code = "internal_error"


class RegionLostError(EngineDeadError):
    """Raised where a region's gateway cannot be reached, goes silent, or answers what is not ours."""

    default_code = "region_lost"


class RegionRefusedError(EngineDeadError):
    """Raised where a region's gateway does not take our peer key: somebody must give both the same one."""

    default_code = "region_refused"


class RegionFullError(EngineOverloadedError):
    """Raised where a region's gateway says that nobody there can take the request now."""

    default_code = "region_full"
