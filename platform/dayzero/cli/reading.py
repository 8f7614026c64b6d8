"""What a command reads: a file, or standard input for `-`."""

import sys
from pathlib import Path

from dayzero.cli.errors import UsageError
from dayzero.errors import DayzeroError

STDIN = "-"


class InputError(DayzeroError):
    """Raised when the input cannot be read or is not what the command takes. Exit code 1."""

    default_code = "input"


def read(name: str, what: str) -> bytes:
    """`what`: what the input is to hold, for the message. Raises UsageError or InputError."""
    if name.startswith("-") and name != STDIN:
        raise UsageError(
            f"{name} is no option here; `-` is standard input, and a file of that name is ./{name}."
        )
    try:
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise InputError(
            f"Cannot read {name}: {error.strerror or error}. Name a file that holds {what}, or `-` for standard input."
        ) from error
