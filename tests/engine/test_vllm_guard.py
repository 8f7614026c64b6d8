"""The guard: when the process that started an engine is killed, the engine's processes end too. No vLLM needed."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from dayzero.serving.engines import vllm_guard
from dayzero.serving.engines.vllm_guard import MARK, Guard, marked

# A parent that starts a guard and a marked child, prints their ids and waits to be killed.
PARENT = f"""
import os, subprocess, sys, time
from pathlib import Path
from dayzero.serving.engines.vllm_guard import Guard
folder = sys.argv[1]
guard = Guard(Path(folder))
child = subprocess.Popen(["sleep", "600"], env={{"{MARK}": folder}}, start_new_session=True)
print(guard.pid, child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until_gone(pids, patience_s=10.0) -> bool:
    end_s = time.monotonic() + patience_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "kv").write_text("a socket")
    return folder


@pytest.fixture
def bystander(tmp_path):
    """A process of another engine."""
    process = subprocess.Popen(["sleep", "600"], env={MARK: str(tmp_path / "engine-2")})
    yield process
    process.kill()
    process.wait()


def test_a_killed_parent_takes_its_engine_along_and_nobody_elses(folder, bystander):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True)
    guard, child = map(int, parent.stdout.readline().split())
    assert alive(guard)
    assert alive(child)
    parent.kill()
    parent.wait()
    assert until_gone([child, guard])
    assert not folder.exists()
    assert alive(bystander.pid)


def test_a_frozen_engine_is_ended_too(folder):
    child = subprocess.Popen(["sleep", "600"], env={MARK: str(folder)})
    os.kill(child.pid, signal.SIGSTOP)
    Guard(folder).close()
    assert child.wait(5) == -signal.SIGKILL


def test_closing_ends_the_guard_and_removes_the_folder(folder):
    guard = Guard(folder)
    guard.close()
    guard.close()
    assert until_gone([guard.pid])
    assert not folder.exists()


def test_the_mark_must_be_the_whole_value(tmp_path, bystander):
    assert marked(str(tmp_path / "engine-2")) == [bystander.pid]
    assert marked(str(tmp_path / "engine")) == []


def test_the_guard_imports_the_standard_library_only():
    code = f"import runpy, sys; runpy.run_path({vllm_guard.__file__!r}); print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    roots = {name.split(".")[0] for name in result.stdout.split()}
    assert roots <= {*sys.stdlib_module_names, "__main__", "__mp_main__"}
