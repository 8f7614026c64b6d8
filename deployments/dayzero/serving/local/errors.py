"""What can go wrong around local regions; every message says what to do.

DayzeroError
└── LocalError            500  a region cannot be started or reached
    ├── PreflightError    500  this machine lacks something: a port, memory, disk, an install
    ├── BusyError         500  another command is starting or stopping regions here
    ├── LostKeyError      500  a region runs, but a file with one of its keys is gone
    └── StartError        500  a step of the start failed; `log` holds the last lines that explain it
        └── TransientStartError  500  Ray lost a race for a port or against its own clock; another try may do
"""

from typing import Any

from dayzero.errors import DayzeroError


class LocalError(DayzeroError):
    """The base of everything that starting and stopping raise."""

    default_code = "local_region"


class PreflightError(LocalError):
    """Raised before anything is started."""


class BusyError(LocalError):
    """Raised when the run folder's lock is held by another process."""


class LostKeyError(LocalError):
    """Raised where a region is left running, since only its owner may decide to restart it."""

    default_code = "lost_key"


class StartError(LocalError):
    """Raised when a step of the start fails; everything started has been ended by the time a person sees it."""

    def __init__(self, message: str, *, log: str = "", **fields: Any) -> None:
        super().__init__(message, **fields)
        self.log = log

    def fields(self) -> dict[str, Any]:
        return super().fields() | {"log": self.log}


class TransientStartError(StartError):
    """Raised when Ray found a port in use, or gave a busy machine up: its patience is 15 to 30 s and cannot be set."""
