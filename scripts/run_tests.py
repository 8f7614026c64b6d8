"""`make test`: the tests, in two lanes that run beside each other.

- Tests with real clusters and engines mostly wait, so the others run meanwhile, at a lower priority, and are shown when
  both are through.
- The exit code is that of the lane that went worst. With words of your own (paths, `-k word`) there is one lane, pytest's.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ALL = "tests"
BESIDE = "tests/unit"
_NICE = 5


def pytest_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *words]


def one_lane(words: Sequence[str]) -> int:
    return subprocess.run(pytest_command(*words), check=False).returncode


def two_lanes(whole: str, beside: str) -> int:
    """Runs `whole` without `beside` in the foreground, and `beside` behind it; returns the worse exit code."""
    print(f"== {whole} without {beside}; {beside} runs beside it and is shown afterwards", flush=True)
    with tempfile.TemporaryFile() as output:
        second = subprocess.Popen(
            pytest_command(beside, "--durations=10"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.nice(_NICE),  # noqa: PLW1509 no thread runs here
        )
        try:
            first_code = one_lane([whole, f"--ignore={beside}", "--durations=25"])
            second_code = second.wait()
        finally:
            with suppress(ProcessLookupError):
                second.terminate()
            second.wait()
        print(f"== {beside}", flush=True)
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    if first_code or second_code:
        print(f"== failed: {whole} ended with {first_code}, {beside} with {second_code}", flush=True)
    return max(first_code, second_code)


def main(words: Sequence[str]) -> int:
    if list(words) == [ALL] and Path(BESIDE).is_dir():
        return two_lanes(ALL, BESIDE)
    return one_lane(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
