"""What `make test` makes of its two lanes, with small tests of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PASSES, FAILS = "def test_it():\n    assert True\n", "def test_it():\n    assert False\n"


@pytest.mark.parametrize(
    ("real", "unit", "code"), [(PASSES, PASSES, 0), (FAILS, PASSES, 1), (PASSES, FAILS, 1)]
)
def test_a_failure_in_either_lane_fails_the_run_and_both_are_shown(tmp_path, real, unit, code):
    for folder, content in (("real", real), ("unit", unit)):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(content)
    done = run(tmp_path, "tests")
    assert done.returncode == code
    assert "test_real.py" in done.stdout
    assert "test_unit.py" in done.stdout


def test_words_of_ones_own_go_to_pytest_as_they_are(tmp_path):
    (tmp_path / "test_mine.py").write_text(PASSES)
    done = run(tmp_path, "test_mine.py", "-k", "it")
    assert done.returncode == 0
    assert "1 passed" in done.stdout
    assert run(tmp_path, "test_mine.py", "-k", "nothing").returncode == 5


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "scripts.run_tests", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
