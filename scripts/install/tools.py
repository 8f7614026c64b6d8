"""Running pip and uv: their output is kept for diagnosis, their news are shown, a failure says what to do."""

import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.install.console import Step
from scripts.install.errors import InstallError, explain

_KEPT_LINES = 400
_SHOWN_LINES = 12


def run(command: Sequence[str | Path], step: Step, variables: Mapping[str, str], *, cwd: Path) -> str:
    """Runs a tool to its end and returns what it said; raises InstallError with its last words otherwise."""
    said: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            if line.strip() and not line.lstrip().startswith(("+", "-", "~", "WARNING: Location")):
                step.now = line.strip()
    if process.returncode != 0:
        raise InstallError(_failure(Path(command[0]).name, process.returncode, list(said)))
    return "\n".join(said)


def _failure(tool: str, code: int, said: list[str]) -> str:
    tail = "\n".join(f"    {line}" for line in said[-_SHOWN_LINES:])
    if code == -9:
        advice = "It was killed: most often the machine ran out of memory."
    else:
        advice = explain("\n".join(said)) or "Run the same command again; what it did so far is not lost."
    return f"{tool} failed (exit {code}):\n{tail}\n{advice}"
