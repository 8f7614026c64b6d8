"""The fleet file's errors.

DayzeroError
└── FleetError                500  the fleet cannot be used; only a start or a reload can meet it
    ├── FleetFileError        500  the file cannot be read: missing, a folder, too large, not UTF-8, empty
    └── FleetInvalidError     500  it reads, but says what cannot be; `faults` lists every fault with its place
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from dayzero.errors import DayzeroError


class FleetError(DayzeroError):
    """The base of everything `load` and `parse` raise."""


class FleetFileError(FleetError):
    """Raised when there is no text to read; the message says what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault of a fleet file. `line` and `column` count from 1; 0 where the text has no such place."""

    line: int
    column: int
    path: str
    message: str

    def text(self, name: str) -> str:
        """`fleet.yaml:12:5: serving.pools[0].modle: unknown field; did you mean 'model'?`."""
        place = f"{name}:{self.line}:{self.column}" if self.line else name
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class FleetInvalidError(FleetError):
    """Raised with all faults at once, in the order of the file. `name` is what the file is called."""

    def __init__(
        self, message: str, *, name: str = "", faults: tuple[Fault, ...] = (), **fields: Any
    ) -> None:
        super().__init__(message, **fields)
        self.name = name
        self.faults = faults

    @classmethod
    def of(cls, name: str, faults: Iterable[Fault]) -> Self:
        ordered = tuple(sorted(set(faults)))
        return cls("\n".join(fault.text(name) for fault in ordered), name=name, faults=ordered)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (kind, message, fields) = super().__reduce__()
        return rebuild, (kind, message, fields | {"name": self.name, "faults": self.faults})
