"""Standard output and error that never make a command fail midway.

- Whoever reads our output may have enough of it (`| head`): the rest goes nowhere, and the exit code stays the command's.
- A full disk takes no more output: the command goes on, and its end says so (`GuardedFile.failure`).
"""

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class GuardedFile(io.FileIO):
    """A descriptor to write to; after the first error everything goes nowhere."""

    failure: OSError | None = None
    """Why output was lost; None when it was not, or when its reader wanted no more."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failure = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def guard(stream: TextIO | None) -> tuple[TextIO | None, GuardedFile | None]:
    """The same stream on a guarded file; one that is closed, or no file, is left as it is."""
    try:
        if stream is None:
            return None, None
        stream.flush()
        file = GuardedFile(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return stream, None
    text = io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.stderr,
    )
    return text, file
