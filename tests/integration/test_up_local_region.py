"""Real Ray clusters, started, hurt, mended and ended by our own code, under an application as small as can be."""

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

from dayzero.config import Fleet, load
from dayzero.serving.local import ledger, store
from dayzero.serving.local.errors import BusyError, PreflightError, StartError
from dayzero.serving.local.fleet import LocalFleet
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.ports import BLOCK_PORTS, is_free
from dayzero.serving.local.probe import get
from dayzero.serving.local.state import RunState

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [str(ROOT / name) for name in ("platform", "router", "deployments", "tests/integration")]
FLEET = """
infrastructure:
  regions:
    - {{name: test, http: {{port: {port}}}, ray: {{logical_cpus: 2, gcs_port: 26379, dashboard_port: 28265}}}}
    - {{name: other, http: {{port: {other}}}, ray: {{logical_cpus: 2, gcs_port: 26380, dashboard_port: 28266}}}}
serving:
  models:
    - {{name: tiny, weights: {{source: path, path: {folder}}}, max_model_tokens: 4096}}
  pools:
    - {{name: tiny, region: test, model: tiny, engine: sim, replicas: 1}}
    - {{name: tiny-other, region: other, model: tiny, engine: sim, replicas: 1}}
"""
START_BY_A_PROGRAM = """
import sys
from pathlib import Path
from dayzero.config import Fleet, load
from dayzero.serving.local.fleet import LocalFleet
from dayzero.serving.local.folders import FleetFolder
from test_up_local_region import Recorder
LocalFleet(FleetFolder(Path(sys.argv[1])), "trivial_app:deploy").up(
    load(sys.argv[2]), regions=["test"], fleet_name="test", progress=Recorder())
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
    run = FleetFolder(tmp_path / "run")
    yield run
    ledger.end(run.mark)


@pytest.fixture
def region(run):
    return run.region("test")


@pytest.fixture
def fleet_file(tmp_path):
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        port, other = one.getsockname()[1], two.getsockname()[1]
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(port=port, other=other, folder=tmp_path))
    return path


def up(run, fleet, *regions, progress=None, deploy="trivial_app:deploy"):
    return LocalFleet(run, deploy).up(
        fleet, regions=regions or None, fleet_name="test", progress=progress or Recorder()
    )


def command(run, *words):
    environment = {**os.environ, "DAYZERO_RUN": str(run.path)}
    program = [sys.executable, "-m", "dayzero.cli.main", *words]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_region_lives_is_hurt_is_mended_and_ends_without_a_trace(run, region, fleet_file):
    fleet = load(fleet_file)
    progress = Recorder()
    (started,) = up(run, fleet, "test", progress=progress)
    assert not started.was_running
    assert progress.steps == ["test: Ray", "test: gateway, replicas"]
    ready = get(f"{started.state.base_url}/readyz")
    assert ready.json()["region"] == "test"

    # Everything that serves is known: the gateway's own process is among the marked ones.
    marked = {process.pid for process in ledger.find(region.mark)}
    assert int(ready.json()["pid"]) in marked
    assert {started.state.head.pid, started.state.store.pid, store.server(region.short()).pid} <= marked

    # A second start finds it, and says the same.
    (again,) = up(run, fleet, "test")
    assert again.was_running
    assert again.state == started.state
    assert get(f"{again.state.base_url}/readyz").json() == ready.json()

    # A keeper that was killed is replaced by the next start, and the region serves on.
    started.state.store.send(signal.SIGKILL)
    wait_until(lambda: not started.state.store.alive, 10)
    progress = Recorder()
    (kept,) = up(run, fleet, "test", progress=progress)
    assert kept.was_running
    assert "keeper had ended" in progress.notes[0]
    assert kept.state.store.alive
    assert store.answers(region.short().store_socket)
    assert get(f"{kept.state.base_url}/readyz").json() == ready.json()

    # The dashboard does not speak to strangers: whoever reaches it may run code.
    assert get(f"{started.state.dashboard_url}/api/serve/applications/").status == 401

    status = command(run, "status", "--json")
    assert (status.returncode, json.loads(status.stdout)["test"]["ready"]) == (0, True)
    table = command(run, "status")
    assert table.returncode == 0
    assert "test: ready" in table.stdout

    # The control store dies: the cluster with it, and the next start clears away what is left.
    (control,) = [process for process in ledger.find(region.mark) if process.name == "gcs_server"]
    control.send(signal.SIGKILL)
    wait_until(lambda: not started.state.alive, 60)
    assert command(run, "status").returncode == 3
    (mended,) = up(run, fleet, "test")
    assert not mended.was_running
    assert mended.state.run_id != started.state.run_id
    assert get(f"{mended.state.base_url}/readyz").ok

    down = command(run, "down")
    assert down.returncode == 0
    assert "1 of Gateway" in down.stdout
    assert "2 of Valkey" in down.stdout
    assert ledger.find(run.mark) == []
    assert is_free(mended.state.http_port)
    assert is_free(mended.state.ray.dashboard)
    short = Path(mended.state.short_folder)
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert [path for path in short.rglob("*") if path.is_socket()] == []
    assert command(run, "down").stdout == "Nothing was running.\n"
    assert command(run, "status").returncode == 3


def test_two_regions_share_keys_and_nothing_else_and_one_outlives_the_other(run, fleet_file):
    fleet = load(fleet_file)
    progress = Recorder()
    test, other = [started.state for started in up(run, fleet, progress=progress)]
    assert (test.region, other.region) == ("test", "other")
    assert progress.steps == [
        "test: Ray",
        "other: Ray",
        "test: gateway, replicas",
        "other: gateway, replicas",
    ]
    for state in (test, other):
        assert get(f"{state.base_url}/readyz").json()["region"] == state.region
    folders = {name: run.region(name) for name in ("test", "other")}
    pids = {name: {p.pid for p in ledger.find(folder.mark)} for name, folder in folders.items()}
    assert not pids["test"] & pids["other"]
    marks = [folder.mark for folder in folders.values()]
    # Processes come and go; at some moment both looks see the same.
    wait_until(lambda: {p.pid for p in ledger.find(*marks)} == {p.pid for p in ledger.find(run.mark)}, 10)
    assert test.short_folder != other.short_folder
    assert abs(test.ray.base - other.ray.base) >= BLOCK_PORTS
    assert len({test.store_url, other.store_url}) == 2

    # A Valkey that is killed is back by itself; nothing else of the region notices.
    server = store.server(folders["test"].short())
    server.send(signal.SIGKILL)
    wait_until(lambda: (now := store.server(folders["test"].short())) and now.pid != server.pid, 5)
    wait_until(lambda: store.answers(folders["test"].short().store_socket), 5)
    assert get(f"{test.base_url}/readyz").ok

    # Both run: nothing to do. One is ended: the other serves on, and is left alone when the first comes back.
    assert [started.was_running for started in up(run, fleet)] == [True, True]
    assert command(run, "status").returncode == 0
    assert command(run, "down", "--region", "test").returncode == 0
    assert ledger.find(folders["test"].mark) == []
    assert get(f"{other.base_url}/readyz").json()["region"] == "other"
    assert {p.pid for p in ledger.find(folders["other"].mark)} >= {other.head.pid, other.store.pid}
    shown = command(run, "status", "--json")
    assert (shown.returncode, list(json.loads(shown.stdout))) == (3, ["other", "test"])
    assert command(run, "status", "other").returncode == 0
    back, still = up(run, fleet)
    assert (back.was_running, still.was_running) == (False, True)
    assert still.state == other

    # One that the fleet no longer has is ended by the next start of the fleet, and by no start of a region.
    fleet_file.write_text(
        "\n".join(line for line in fleet_file.read_text().splitlines() if "other" not in line)
    )
    alone = load(fleet_file)
    up(run, alone, "test")  # anew: it would have asked the other, which is gone
    assert get(f"{other.base_url}/readyz").ok
    progress = Recorder()
    (test_again,) = up(run, alone, progress=progress)
    assert test_again.was_running
    assert progress.notes[0].startswith("this fleet does not have other, which runs: it is ended")
    assert "of what the fleet does not have: other" in progress.notes[1]
    assert ledger.find(folders["other"].mark) == []
    assert command(run, "down").returncode == 0
    assert ledger.find(run.mark) == []


def test_a_region_that_fails_takes_with_it_what_the_same_start_began_and_nothing_else(run, fleet_file):
    fleet = load(fleet_file)
    with pytest.raises(StartError) as caught:
        up(run, fleet, deploy="trivial_app:deploy_broken_in_other")
    assert caught.value.message.startswith("other: The application could not be deployed")
    assert "the application has a fault of its own" in caught.value.log
    assert ledger.find(run.mark) == []
    assert RunState.read(run.region("other").state) is None
    up(run, fleet, "test")
    progress = Recorder()
    with pytest.raises(StartError):
        up(run, fleet, progress=progress, deploy="trivial_app:deploy_broken_in_other")
    assert ledger.find(run.region("other").mark) == []
    state = RunState.read(run.region("test").state)
    assert get(f"{state.base_url}/readyz").ok


def test_an_application_with_a_fault_is_explained_and_nothing_is_left(run, region, fleet_file):
    with pytest.raises(StartError) as caught:
        up(run, load(fleet_file), "test", deploy="trivial_app:deploy_broken")
    assert "could not be deployed" in caught.value.message
    assert "the application has a fault of its own" in caught.value.log
    assert ledger.find(run.mark) == []
    assert RunState.read(region.state) is None


def test_a_port_that_a_stranger_takes_while_ray_starts_costs_another_block_and_no_failure(
    run, region, fleet_file
):
    """Its store is its owner's, so none is started beside it."""
    data = load(fleet_file).model_dump()
    data["infrastructure"]["regions"][0]["redis"]["url"] = "redis://someone:s3cret@127.0.0.1:1/0"
    fleet = Fleet.model_validate(data)
    stop = threading.Event()

    def take_one():
        while not stop.wait(0.01):
            state = RunState.read(region.state)
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
        (started,) = up(run, fleet, "test")
    finally:
        stop.set()
        stranger.join()
    assert taken
    assert started.state.ray.base != taken[0]
    assert get(f"{started.state.base_url}/readyz").ok
    assert (started.state.store, started.state.store_url) == (None, "redis://127.0.0.1:1/0")
    assert "s3cret" not in region.state.read_text()
    assert store.SERVER not in {process.name for process in ledger.find(region.mark)}


def test_a_start_that_was_killed_midway_is_cleared_away(run, fleet_file):
    program = [sys.executable, "-c", START_BY_A_PROGRAM, str(run.path), str(fleet_file)]
    with subprocess.Popen(program) as starter:
        wait_until(lambda: any(process.name == "gcs_server" for process in ledger.find(run.mark)), 120)
        with pytest.raises(BusyError, match=f"process {starter.pid}"):
            LocalFleet(run).down()
        starter.kill()
    assert ledger.find(run.mark)
    status = command(run, "status", "--json")
    assert status.returncode == 1
    assert json.loads(status.stdout)["test"]["phase"] == "starting"
    assert command(run, "down").returncode == 0
    assert ledger.find(run.mark) == []


def test_a_taken_port_is_said_before_anything_starts(run, fleet_file):
    fleet = load(fleet_file)
    with socket.socket() as server:
        server.bind(("127.0.0.1", fleet.region("test").http.port))
        server.listen()
        with pytest.raises(PreflightError, match=f"taken by process {os.getpid()}"):
            up(run, fleet, "test")
    assert ledger.find(run.mark) == []


def test_a_state_of_long_ago_whose_process_ids_are_others_now_harms_nobody(run, region):
    """A restart of the machine leaves a state whose process ids mean something else."""
    region.make()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        identity = ProcessId(bystander.pid, time.time() - 10**6, "ray")
        from tests.unit.test_local_state import STATE

        STATE.running().with_head(identity).write(region.state)
        assert LocalFleet(run).down() == []
        assert bystander.poll() is None
        bystander.kill()
    assert RunState.read(region.state) is None


def wait_until(true, timeout_s):
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.1)
