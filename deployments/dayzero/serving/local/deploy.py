"""The deploy step: a driver of its own that connects to the cluster, deploys the application and leaves it running.

- The only place here that imports Ray; the process that waits for the region never does.
- What is deployed is named by its argument, `module:function`, a function of (fleet, region, the region's folder).
"""

import importlib
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dayzero.config import Fleet
from dayzero.serving.local.folders import RegionFolder

APPLICATION = "dayzero.serving.local.application:deploy"


@dataclass(frozen=True, slots=True)
class Handoff:
    """All that the driver needs, sent to its standard input."""

    fleet: Fleet
    region: str
    folder: RegionFolder
    address: str


@dataclass(frozen=True, slots=True)
class Driver:
    """The deploying process. It loads what it needs while Ray starts, and waits for the handoff."""

    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, environment: Mapping[str, str], log: Path, deploy: str) -> "Driver":
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "dayzero.serving.local.deploy", deploy],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process)

    def begin(self, handoff: Handoff) -> None:
        """Sends the handoff; the process deploys, and ends when that is done."""
        assert self.process.stdin is not None
        try:
            with self.process.stdin as pipe:
                pipe.write(pickle.dumps(handoff))
        except BrokenPipeError:  # it ended already; its log says why
            return


def main() -> int:
    module, _, function = sys.argv[1].partition(":")
    import ray  # noqa: PLC0415 see the module's docstring

    deploy = getattr(importlib.import_module(module), function)
    message = sys.stdin.buffer.read()
    if not message:  # whoever started this ended before there was a cluster
        return 1
    handoff: Handoff = pickle.loads(message)  # noqa: S301 written by our own parent
    ray.init(address=handoff.address, log_to_driver=False, configure_logging=False)
    deploy(handoff.fleet, handoff.region, handoff.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
