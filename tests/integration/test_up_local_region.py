"""A real Ray cluster, started, hurt, mended and ended by our own code, under an application as small as can be."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dayzero.config import load
from dayzero.serving.local import ledger
from dayzero.serving.local.errors import BusyError, PreflightError, StartError
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.ports import is_free
from dayzero.serving.local.probe import get
from dayzero.serving.local.region import LocalRegion
from dayzero.serving.local.state import RunState

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [str(ROOT / name) for name in ("platform", "router", "deployments", "tests/integration")]
FLEET = """
infrastructure:
  regions:
    - {{name: test, http: {{port: {port}}}, ray: {{logical_cpus: 2, gcs_port: 26379, dashboard_port: 28265}}}}
serving:
  models:
    - {{name: tiny, weights: {{source: path, path: {folder}}}, max_model_tokens: 4096}}
  pools:
    - {{name: tiny, region: test, model: tiny, engine: sim, replicas: 1}}
"""
START_BY_A_PROGRAM = """
import sys
from pathlib import Path
from dayzero.config import load
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.region import LocalRegion
from test_up_local_region import Recorder
LocalRegion(RunFolder(Path(sys.argv[1])), "trivial_app:deploy").up(
    load(sys.argv[2]), "test", fleet_name="test", progress=Recorder())
"""

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


class Recorder:
    """Progress that is kept."""

    def __init__(self):
        self.notes, self.steps, self.said = [], [], []

    def note(self, text):
        self.notes.append(text)

    @contextlib.contextmanager
    def step(self, name):
        self.steps.append(name)
        yield self

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(SOURCES))
    run = RunFolder(tmp_path / "run")
    yield run
    ledger.end(run.mark)


@pytest.fixture
def fleet_file(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(port=port, folder=tmp_path))
    return path


def command(run, *words):
    environment = {**os.environ, "DAYZERO_RUN": str(run.path)}
    program = [sys.executable, "-m", "dayzero.cli.main", *words]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_region_lives_is_hurt_is_mended_and_ends_without_a_trace(run, fleet_file):
    fleet = load(fleet_file)
    region = LocalRegion(run, "trivial_app:deploy")
    progress = Recorder()
    started = region.up(fleet, "test", fleet_name="test", progress=progress)
    assert not started.was_running
    assert progress.steps == ["Ray", "gateway and replicas"]
    ready = get(f"{started.state.base_url}/readyz")
    assert ready.json()["region"] == "test"

    # Everything that serves is known: the gateway's own process is among the marked ones.
    marked = {process.pid for process in ledger.find(run.mark)}
    assert int(ready.json()["pid"]) in marked
    assert marked >= {process.pid for process in RunState.read(run.state).processes if process.alive}

    # A second start finds it, and says the same.
    again = region.up(fleet, "test", fleet_name="test", progress=Recorder())
    assert again.was_running
    assert again.state == started.state
    assert get(f"{again.state.base_url}/readyz").json() == ready.json()

    # The dashboard does not speak to strangers: whoever reaches it may run code.
    assert get(f"{started.state.dashboard_url}/api/serve/applications/").status == 401

    status = command(run, "status", "--json")
    assert (status.returncode, json.loads(status.stdout)["ready"]) == (0, True)
    table = command(run, "status")
    assert table.returncode == 0
    assert "test: ready" in table.stdout

    # The control store dies: the cluster with it, and the next start clears away what is left.
    (store,) = [process for process in ledger.find(run.mark) if process.name == "gcs_server"]
    store.send(signal.SIGKILL)
    wait_until(lambda: not started.state.processes[0].alive, 60)
    assert command(run, "status").returncode == 3
    progress = Recorder()
    mended = region.up(fleet, "test", fleet_name="test", progress=progress)
    assert not mended.was_running
    assert mended.state.run_id != started.state.run_id
    assert get(f"{mended.state.base_url}/readyz").ok

    down = command(run, "down")
    assert down.returncode == 0
    assert "1 of Gateway" in down.stdout
    assert ledger.find(run.mark) == []
    assert is_free(mended.state.http_port)
    assert is_free(mended.state.ray.dashboard)
    short = Path(mended.state.short_folder)
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert [path for path in short.rglob("*") if path.is_socket()] == []
    assert command(run, "down").stdout == "Nothing was running.\n"
    assert command(run, "status").returncode == 3


def test_an_application_with_a_fault_is_explained_and_nothing_is_left(run, fleet_file):
    with pytest.raises(StartError) as caught:
        LocalRegion(run, "trivial_app:deploy_broken").up(
            load(fleet_file), "test", fleet_name="test", progress=Recorder()
        )
    assert "could not be deployed" in caught.value.message
    assert "the application has a fault of its own" in caught.value.log
    assert ledger.find(run.mark) == []
    assert RunState.read(run.state) is None


def test_a_port_that_a_stranger_takes_while_ray_starts_costs_another_block_and_no_failure(run, fleet_file):
    stop = threading.Event()

    def take_one():
        while not stop.wait(0.01):
            state = RunState.read(run.state)
            if state is not None:
                with socket.socket() as stranger:
                    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    stranger.bind(("0.0.0.0", state.ray.inner(2)))
                    stranger.listen()
                    taken.append(state.ray.base)
                    stop.wait(300)
                return

    taken = []
    stranger = threading.Thread(target=take_one)
    stranger.start()
    try:
        started = LocalRegion(run, "trivial_app:deploy").up(
            load(fleet_file), "test", fleet_name="test", progress=Recorder()
        )
    finally:
        stop.set()
        stranger.join()
    assert taken
    assert started.state.ray.base != taken[0]
    assert get(f"{started.state.base_url}/readyz").ok


def test_a_start_that_was_killed_midway_is_cleared_away(run, fleet_file):
    program = [sys.executable, "-c", START_BY_A_PROGRAM, str(run.path), str(fleet_file)]
    with subprocess.Popen(program) as starter:
        wait_until(lambda: any(process.name == "gcs_server" for process in ledger.find(run.mark)), 120)
        with pytest.raises(BusyError, match=f"process {starter.pid}"):
            LocalRegion(run).down()
        starter.kill()
    assert ledger.find(run.mark)
    status = command(run, "status", "--json")
    assert status.returncode == 1
    assert json.loads(status.stdout)["phase"] == "starting"
    assert command(run, "down").returncode == 0
    assert ledger.find(run.mark) == []


def test_a_taken_port_is_said_before_anything_starts(run, fleet_file):
    fleet = load(fleet_file)
    with socket.socket() as server:
        server.bind(("127.0.0.1", fleet.region("test").http.port))
        server.listen()
        with pytest.raises(PreflightError, match=f"taken by process {os.getpid()}"):
            LocalRegion(run, "trivial_app:deploy").up(fleet, "test", fleet_name="test", progress=Recorder())
    assert ledger.find(run.mark) == []


def test_a_state_of_long_ago_whose_process_ids_are_others_now_harms_nobody(run, fleet_file):
    """A restart of the machine leaves a state whose process ids mean something else."""
    run.make()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        identity = ProcessId(bystander.pid, time.time() - 10**6, "ray")
        from tests.unit.test_local_state import STATE

        STATE.running().with_process(identity).write(run.state)
        assert LocalRegion(run).down() == []
        assert bystander.poll() is None
        bystander.kill()
    assert RunState.read(run.state) is None


def wait_until(true, timeout_s):
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.1)
