"""Dynamo's side from here: its environment, made where it is missing, and the process that answers in it."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERSION = "1.6.1"
_PACKAGES = (f"ai-dynamo-runtime=={VERSION}", "pyzmq", "msgspec", "numpy", "psutil")


class Peer:
    """A process in the peer's environment; one command at a time."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(HERE / "dynamo_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"DYN_LOG": "error", "PYTHONPATH": str(HERE)},
        )

    def do(self, name: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended at `{name}`; its words are above")
        return dict(json.loads(line))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def peer(python: Path, replicas: int, block_tokens: int) -> Iterator[Peer]:
    running = Peer(python)
    try:
        running.do("start", replicas=replicas, block_tokens=block_tokens)
        yield running
    finally:
        running.end()


def environment(folder: Path) -> Path:
    """The Python of an environment with the peer in it."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing Dynamo {VERSION} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *_PACKAGES], check=True)
        subprocess.run([*install, "--no-deps", f"ai-dynamo=={VERSION}"], check=True)
    return python
