"""The end of a log: what a person needs when a start fails."""

import os
from pathlib import Path

_TAIL_BYTES = 64 * 1024


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a file that are not blank; empty when it is missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-lines:])
