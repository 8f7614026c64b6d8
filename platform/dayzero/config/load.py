"""`load` a fleet file, `parse` its text, and name a place of it."""

import stat
from contextlib import suppress
from pathlib import Path

from dayzero.config.errors import Fault, FleetFileError, FleetInvalidError
from dayzero.config.fleet import Fleet, build
from dayzero.config.yaml_source import MAX_TEXT_BYTES, Source, read
from dayzero.config.yaml_source import Path as Steps

_HINT = "deployments/local.yaml is an example to start from"


def load(path: str | Path) -> Fleet:
    """Raises FleetFileError where there is no text to read, FleetInvalidError with all faults of the text."""
    name = str(path)
    return parse(_text(Path(path), name), name)


def parse(text: str, name: str = "fleet.yaml") -> Fleet:
    """`name` is what faults call the text. Raises FleetError."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise FleetFileError(f"{name}: larger than {MAX_TEXT_BYTES} bytes; a fleet file is a few kilobytes")
    source = read(text)
    if source.tree is None:
        if source.faults:
            raise FleetInvalidError.of(name, source.faults)
        raise FleetFileError(f"{name}: is empty; {_HINT}")
    if not isinstance(source.tree, dict):
        fault = Fault(1, 1, "", "expected the sections infrastructure, serving and policy, each a mapping")
        raise FleetInvalidError.of(name, [*source.faults, fault])
    return build(source, name)


def fault_at(name: str, steps: Steps, message: str) -> str:
    """A fault that only who uses a fleet could find, in words, with its line. `name`: the file it was loaded from."""
    source = Source()
    with suppress(FleetFileError):  # one that is gone by now has no lines
        source = read(_text(Path(name), name))
    return source.fault(steps, message).text(name)


def _text(path: Path, name: str) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise FleetFileError(f"{name}: is a folder; name the fleet file in it")
        if not stat.S_ISREG(mode):
            raise FleetFileError(f"{name}: is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise FleetFileError(f"{name}: no such file; {_HINT}") from None
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise FleetFileError(f"{name}: cannot be read: {reason}") from e
    if len(data) > MAX_TEXT_BYTES:
        raise FleetFileError(f"{name}: larger than {MAX_TEXT_BYTES} bytes; a fleet file is a few kilobytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise FleetFileError(f"{name}:{line}: is not UTF-8 (byte {e.start}); save it as UTF-8") from None
