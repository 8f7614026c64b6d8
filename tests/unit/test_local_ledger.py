"""Real processes are found by their mark and ended by their identity."""

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dayzero.serving.local import ledger
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.ledger import MARK_VARIABLE, ProcessId

FOREVER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
PARENT_OF_UNMARKED = (
    "import os, subprocess, sys, time; variables = dict(os.environ); variables.pop('DAYZERO_RUN_ID');"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env=variables);"
    "print(child.pid, flush=True); time.sleep(600)"
)


@pytest.fixture
def mark():
    return f"test{secrets.token_hex(8)}"


@pytest.fixture
def start():
    started = []

    def run(script, mark):
        environment = {**os.environ, MARK_VARIABLE: mark}
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_a_run_finds_its_own_processes_and_no_others(mark, start):
    mine, _ = start(FOREVER, f"{mark}-1")
    start(FOREVER, f"other{mark}")
    assert [process.pid for process in ledger.find(mark)] == [mine.pid]
    assert ledger.find(f"{mark}-2") == []


def test_a_region_whose_name_begins_anothers_is_not_the_other(mark, start):
    folder = FleetFolder(Path(f"/none/{mark}"))
    one, two = folder.region("us-east"), folder.region("us-east-2")
    first, _ = start(FOREVER, f"{one.mark}1")
    second, _ = start(FOREVER, f"{two.mark}1")
    assert [process.pid for process in ledger.find(one.mark)] == [first.pid]
    assert [process.pid for process in ledger.find(two.mark)] == [second.pid]
    assert {process.pid for process in ledger.find(one.mark, two.mark)} == {first.pid, second.pid}
    assert ledger.find() == []
    marks = ledger.marks(folder.mark)
    assert {folder.region_of(run_id) for run_id in marks} == {"us-east", "us-east-2"}


def test_a_child_that_lost_the_mark_is_found_through_its_parent(mark, start):
    parent, child = start(PARENT_OF_UNMARKED, mark)
    assert {process.pid for process in ledger.find(mark)} == {parent.pid, int(child)}
    ledger.end(mark)
    assert ProcessId.of(int(child)) is None


def test_ending_a_run_ends_the_stubborn_too_and_spares_the_rest(mark, start):
    polite, _ = start(FOREVER, mark)
    stubborn, _ = start(STUBBORN, mark)
    bystander, _ = start(FOREVER, f"other{mark}")
    ended = ledger.end(mark)
    assert {process.pid for process in ended} == {polite.pid, stubborn.pid}
    assert polite.wait(5) == -signal.SIGTERM
    assert stubborn.wait(5) == -signal.SIGKILL
    assert bystander.poll() is None
    assert ledger.find(mark) == []


def test_ending_nothing_is_quick_and_ends_nothing(mark):
    waits_s = []
    assert ledger.end(mark, wait=waits_s.append) == []
    assert waits_s == []


def test_the_asking_process_and_its_parents_are_spared(mark):
    """`dayzero down` may run inside a marked shell: it must not end itself or the shell."""
    script = f"from dayzero.serving.local import ledger; print(ledger.end({mark!r})); print('still here')"
    environment = {**os.environ, MARK_VARIABLE: mark, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.split("\n")[:2] == ["[]", "still here"], result.stderr


def test_a_recycled_process_id_is_nobody(mark, start):
    process, _ = start(FOREVER, mark)
    now = ProcessId.of(process.pid)
    earlier = ProcessId(process.pid, now.create_time_s - 100, now.name)
    assert now.alive
    assert not earlier.alive
    earlier.send(signal.SIGKILL)
    time.sleep(0.2)  # a signal that was sent would have arrived by now
    assert process.poll() is None


def test_a_zombie_is_not_alive(mark, start):
    process, _ = start(FOREVER, mark)
    identity = ProcessId.of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 5
    while identity.alive and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not identity.alive


def test_python_programs_are_called_by_their_script_or_module(tmp_path, mark, start):
    script = tmp_path / "monitor.py"
    script.write_text("import time; time.sleep(600)")
    with subprocess.Popen([sys.executable, "-u", script]) as process:
        deadline_s = time.monotonic() + 5
        while ProcessId.of(process.pid).name != "python monitor.py" and time.monotonic() < deadline_s:
            time.sleep(0.02)
        name = ProcessId.of(process.pid).name
        process.kill()
    assert name == "python monitor.py"


ENDING = (
    "import sys; from pathlib import Path; from dayzero.serving.local.folders import FleetFolder;"
    "from dayzero.serving.local.fleet import LocalFleet; print('up', flush=True);"
    "LocalFleet(FleetFolder(Path(sys.argv[1]))).down()"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_end_that_is_interrupted_again_and_again_ends_everything_and_then_itself(tmp_path, start, number):
    run = FleetFolder(tmp_path / "run")
    run.make()
    stubborn, _ = start(STUBBORN, f"{run.region('us-east').mark}1")  # takes two seconds to be killed
    program = [sys.executable, "-c", ENDING, str(run.path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ending:
        ending.stdout.readline()
        while not _catches_hangups(ending.pid):
            time.sleep(0.01)
        for _ in range(3):
            ending.send_signal(number)
            time.sleep(0.1)
            assert ending.poll() is None
        assert ending.wait(30) == -number  # as if it had come just now
        ending.stderr.read()
    assert stubborn.wait(10) == -signal.SIGKILL


def _catches_hangups(pid):
    """Only a clean-up does; the signals are taken in order, SIGHUP last."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    return bool(int(line.split()[1], 16) >> (signal.SIGHUP - 1) & 1)
