"""What a person, or a program, reads when a command fails.

- Standard error has the message, after the last lines of the log that it is about.
- With `--json`, standard output has `{"error": {"message", "code", "log"}}` too, so that it always is one JSON value.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dayzero.errors import DayzeroError

STOPPED = "stopped; what was started has been ended."


@contextmanager
def as_json(wanted: bool) -> Iterator[None]:  # noqa: FBT001 the command's own flag
    """Prints the failure that leaves the block; it goes on to whoever says it to a person."""
    try:
        yield
    except (DayzeroError, OSError, KeyboardInterrupt) as error:
        if wanted:
            print(json.dumps({"error": record(error)}, indent=2))
        raise


def record(error: BaseException) -> dict[str, object]:
    if isinstance(error, DayzeroError):
        return {"message": error.message, "code": error.code, "log": getattr(error, "log", "")}
    if isinstance(error, OSError):
        return {"message": words(error), "code": "os_error", "log": ""}
    return {"message": str(error) or "stopped.", "code": "interrupted", "log": ""}


def words(error: OSError) -> str:
    """The system's own words, and the file that they are about."""
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror or error}"


def explain(error: BaseException) -> None:
    told = record(error)
    if told["log"]:
        print("\n".join(f"    {line}" for line in str(told["log"]).splitlines()), file=sys.stderr)
    print(f"dayzero: {told['message']}", file=sys.stderr)
