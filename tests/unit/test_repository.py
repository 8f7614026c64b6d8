"""The hygiene of the repository: what no committed file may hold, and how long a module may be."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_LINES = 400
# Spelled in pieces, so that this file does not match itself.
HOSTS = re.compile(
    "|".join(
        (
            "py" + r"pi\.org",
            "python" + r"hosted\.org",
            "download" + r"\.pytorch\.org",
            r"registry\.npm" + "js",
        )
    )
)
MACHINE_PATHS = re.compile(
    "|".join(("/ro" + "ot/", "/ho" + r"me/\w+/", "/wo" + "rk/", "/tm" + "p/dz", "/op" + "t/(wheels|pypi)"))
)
THE_ONE_ADDRESS = Path("requirements/torch-index.txt")


@cache
def committed() -> tuple[Path, ...]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return tuple(Path(name) for name in names.split("\0") if name and (ROOT / name).is_file())


def lines_that_match(pattern):
    found = []
    for path in committed():
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path}:{number}" for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)
        ]
    return found


def test_no_file_names_a_package_registry_but_the_one_with_pytorchs_index():
    assert [place for place in lines_that_match(HOSTS) if not place.startswith(f"{THE_ONE_ADDRESS}:")] == []
    assert HOSTS.search((ROOT / THE_ONE_ADDRESS).read_text())


def test_no_file_names_a_path_of_somebodys_machine():
    assert lines_that_match(MACHINE_PATHS) == []


def test_no_module_is_longer_than_its_reader():
    lengths = {
        path: len((ROOT / path).read_text().splitlines()) for path in committed() if path.suffix == ".py"
    }
    assert len(lengths) > 20
    assert {path: length for path, length in lengths.items() if length > LONGEST_LINES} == {}


def test_source_roots_hold_no_modules_of_their_own():
    """A `platform/__init__.py` would shadow the standard library's `platform`."""
    roots = ("platform", "router", "deployments")
    assert [
        path
        for path in committed()
        if path.parts[0] in roots and path.suffix == ".py" and len(path.parts) < 4
    ] == []


def test_nothing_that_a_run_makes_is_committed():
    assert [path for path in committed() if path.parts[0] in {".venv", ".run"} or path.suffix == ".pyc"] == []
