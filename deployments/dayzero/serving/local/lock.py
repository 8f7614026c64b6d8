"""The lock of a run folder: one command at a time starts or stops its regions.

- The kernel holds it for as long as its process lives, so none is ever stale.
- The holder writes its process id into the file, for people only; a file without one is locked all the same.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dayzero.serving.local.errors import BusyError, PreflightError
from dayzero.serving.local.ledger import ProcessId


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Raises BusyError while another process holds it, PreflightError where the file cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise PreflightError(
            f"The run folder {path.parent} cannot be used ({error.strerror}). It must be a folder that you can write "
            "to; DAYZERO_RUN=FOLDER names another place."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(_busy(_written(path))) from None
        _write(descriptor, str(os.getpid()))
        try:
            yield
        finally:
            _write(descriptor, "")
    finally:
        os.close(descriptor)


def holder(path: Path) -> ProcessId | None:
    """The process that is starting or stopping regions now, as far as it has written its id."""
    written = _written(path)
    return ProcessId.of(int(written)) if written else None


def _written(path: Path) -> str:
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return ""
    return text if text.isascii() and text.isdigit() else ""


def _write(descriptor: int, text: str) -> None:
    with suppress(OSError):  # a full disk; nothing but a message needs it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _busy(pid: str) -> str:
    if not pid:
        return (
            "Another command is starting or stopping regions here. Wait for it, or stop it with Ctrl-C where it runs: "
            "it clears away what it started."
        )
    return (
        f"Another command (process {pid}) is starting or stopping regions here. Wait for it, or stop it with Ctrl-C "
        f"where it runs (kill {pid}): it clears away what it started."
    )
