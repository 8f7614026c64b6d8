"""`python -m overhead.far_region FOLDER`: the region at the far end of the line, until the standard input ends."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dayzero.cli.main import explain
from dayzero.config import Fleet
from dayzero.errors import DayzeroError
from dayzero.serving.local.folders import FleetFolder
from overhead import systems, wan

PORT = 18_400


def fleet() -> Fleet:
    """The benchmark's fleet, listening on the line."""
    data = systems.fleet(PORT).model_dump()
    data["infrastructure"]["regions"][0]["http"] |= {
        "host": "0.0.0.0",  # of its own network
        "internal_url": f"http://{wan.FAR}:{PORT}",
    }
    return Fleet.model_validate(data)


@contextmanager
def running(line: wan.Wan, folder: Path) -> Iterator[FleetFolder]:
    process = subprocess.Popen(
        line.inside(wan.FAR, sys.executable, "-m", "overhead.far_region", str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the benchmark, which ends this
    )
    assert process.stdin is not None
    assert process.stdout is not None
    is_up = False
    try:
        is_up = bool(process.stdout.readline())
        if not is_up:
            raise RuntimeError("the far region did not start; why stands above")
        yield FleetFolder(folder)
    finally:
        process.stdin.close()
        if not is_up:
            process.send_signal(signal.SIGINT)  # a start that is interrupted ends what it began
        process.wait()
        process.stdout.close()


def main(folder: str) -> None:
    with ExitStack() as stack:
        systems.region(stack, Path(folder), fleet())
        print("up", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
    except DayzeroError as error:  # a start that failed says why
        explain(error)
        sys.exit(1)
