"""What `up` is told, what it remembers of it, and what it leaves alone: healing never converts, failing never ends."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dayzero.config import FleetInvalidError, load
from dayzero.serving.local import preflight
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.fleet import LocalFleet
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.keys import ensure_keys
from dayzero.serving.local.ledger import MARK_VARIABLE, ProcessId
from dayzero.serving.local.options import Options, applied, by_region, changes, engine_of
from dayzero.serving.local.state import RunState
from dayzero.serving.peer_book import PeerBook, read_addresses, write_addresses
from tests.unit.test_local_state import STATE

FLEET = load(Path(__file__).resolve().parents[2] / "deployments" / "local.yaml")
NAMES = ("us-east", "eu-west")


def ran(name, fleet, options):
    """The state of a region that was started with these."""
    return replace(
        STATE.running(),
        region=name,
        engine=engine_of(fleet, name),
        http_port=fleet.region(name).http.port,
        region_hash=fleet.hash_of(name),
        engine_option=options.engine,
        port_option=options.port,
        vocabulary_option=None if options.vocabulary is None else str(options.vocabulary),
    )


def settle(given, names=None, states=None, fleet=FLEET):
    states = states or {}
    options = by_region(states, given, fleet, names)
    return applied(fleet, options, states, names), options


def started(given, names=None):
    fleet, options = settle(given, names)
    return {name: ran(name, fleet, options[name]) for name in names or NAMES}


def places(fleet):
    return {name: (engine_of(fleet, name), fleet.region(name).http.port) for name in NAMES}


def test_a_start_without_options_keeps_those_that_a_region_runs_with():
    states = started(Options("sim", 19_100))
    again, options = settle(Options(), states=states)
    assert places(again) == {"us-east": ("sim", 19_100), "eu-west": ("sim", 19_101)}
    assert [changes(states[name], again) for name in NAMES] == ["", ""]
    assert options["us-east"] == Options("sim", 19_100)


def test_a_region_that_was_ended_is_as_the_file_says_and_the_other_stays():
    states = started(Options("sim", 19_100))
    del states["eu-west"]
    again, _ = settle(Options(), states=states)
    assert places(again) == {"us-east": ("sim", 19_100), "eu-west": ("vllm", 8001)}


def test_what_is_given_changes_what_it_is_given_for_and_names_it():
    states = started(Options("sim", 19_100))
    again, _ = settle(Options(port=19_200), ["eu-west"], states)
    assert places(again) == {"us-east": ("sim", 19_100), "eu-west": ("sim", 19_200)}
    assert changes(states["eu-west"], again) == "the port changes from 19101 to 19200"
    assert changes(states["us-east"], again) == ""
    again, _ = settle(Options(engine="vllm"), states=states)
    assert changes(states["us-east"], again) == "the engine changes from sim to vllm"


def test_a_changed_file_is_named_apart_from_a_changed_engine_and_port():
    states = started(Options())
    data = FLEET.model_dump()
    data["policy"]["drain_timeout_s"] = 5
    edited = type(FLEET).model_validate(data)
    again, _ = settle(Options(), states=states, fleet=edited)
    assert changes(states["us-east"], again) == "the fleet file changed"
    again, _ = settle(Options("sim", 19_100), states=states, fleet=edited)
    assert changes(states["us-east"], again) == (
        "the engine changes from vllm to sim, the port changes from 8000 to 19100, the fleet file changed"
    )


def test_what_the_file_says_of_engine_and_port_counts_where_nothing_was_given():
    states = started(Options())
    edited = FLEET.with_engine("sim").with_ports({"us-east": 8100})
    again, _ = settle(Options(), states=states, fleet=edited)
    assert places(again) == {"us-east": ("sim", 8100), "eu-west": ("sim", 8001)}


def test_a_region_started_later_is_told_where_the_other_runs():
    states = started(Options("sim", 19_101), ["eu-west"])
    again, _ = settle(Options("sim", 19_100), ["us-east"], states)
    assert again.region("eu-west").http.port == 19_101
    with pytest.raises(FleetInvalidError, match="port 19101"):
        settle(Options(port=19_101), ["us-east"], states)


def test_a_peer_that_moves_is_no_reason_to_start_a_region_anew():
    states = started(Options("sim", 19_100))
    again, _ = settle(Options(port=19_200), ["eu-west"], states)
    assert again.hash_of("us-east") == states["us-east"].region_hash


def test_the_book_of_addresses_is_followed_and_an_internal_url_wins_over_it(tmp_path):
    path = tmp_path / "peers.json"
    book = PeerBook(FLEET, "us-east", path)
    assert book.urls() == {"eu-west": "http://127.0.0.1:8001"}
    for port in (19_101, 19_200):
        write_addresses(path, FLEET.with_ports({"eu-west": port}))
        assert book.urls() == {"eu-west": f"http://127.0.0.1:{port}"}
    path.unlink()
    assert book.urls() == {"eu-west": "http://127.0.0.1:19200"}
    data = FLEET.model_dump()
    data["infrastructure"]["regions"][1]["http"]["internal_url"] = "http://far:1"
    write_addresses(path, FLEET)
    assert PeerBook(type(FLEET).model_validate(data), "us-east", path).urls() == {"eu-west": "http://far:1"}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"eu-west": 5}', '{"eu-west": "elsewhere"}'])
def test_a_book_that_cannot_be_read_says_nothing(tmp_path, content):
    path = tmp_path / "peers.json"
    path.write_text(content)
    assert read_addresses(path) == {}
    assert PeerBook(FLEET, "us-east", path).urls() == {"eu-west": "http://127.0.0.1:8001"}


class Kept:
    """Progress whose notes are kept."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    @contextlib.contextmanager
    def step(self, name):
        yield self

    def say(self, text):
        pass


@pytest.fixture
def us_east(tmp_path):
    """A region that serves, as far as `up` can see: a process with its mark and a gateway that says that it is ready."""

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *words):
            pass

    run = FleetFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    region = run.region("us-east")
    region.make()
    variables = {**os.environ, MARK_VARIABLE: f"{region.mark}1"}
    with (
        HTTPServer(("127.0.0.1", 0), Ready) as server,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=variables) as head,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fleet, options = settle(Options("sim", server.server_port), ["us-east"])
        state = ran("us-east", fleet, options["us-east"])
        state.with_head(ProcessId.of(head.pid)).write(region.state)
        yield region, head
        server.shutdown()
        head.kill()


def up(region, given, *regions, progress=None):
    return LocalFleet(region.fleet).up(
        FLEET, fleet_name="x", progress=progress or Kept(), regions=regions or None, given=given
    )


def test_up_without_options_finds_what_runs_with_some_and_writes_where_it_is(us_east):
    region, head = us_east
    progress = Kept()
    (again,) = up(region, Options(), "us-east", progress=progress)
    assert again.was_running
    assert progress.notes == []
    assert head.poll() is None
    port = RunState.read(region.state).http_port
    assert read_addresses(region.fleet.peers) == {
        "us-east": f"http://127.0.0.1:{port}",
        "eu-west": "http://127.0.0.1:8001",
    }


def test_a_start_that_cannot_be_leaves_what_runs(us_east, monkeypatch):
    region, head = us_east
    before = region.state.read_text()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        progress = Kept()
        with pytest.raises(PreflightError, match=f"Port {port} is taken"):
            up(region, Options(port=port), "us-east", progress=progress)
    assert (
        f"us-east: the port changes from {RunState.read(region.state).http_port} to {port}"
        in (progress.notes[0])
    )

    def missing():
        raise PreflightError("The real engine is not installed")

    monkeypatch.setattr(preflight, "require_engine", missing)
    with pytest.raises(PreflightError, match="not installed"):
        up(region, Options(engine="vllm"), "us-east")
    assert head.poll() is None
    assert region.state.read_text() == before
    assert not region.fleet.peers.exists()


def test_a_refused_vocabulary_is_told_before_anything_is_announced(us_east, tmp_path):
    region, head = us_east
    progress = Kept()
    with pytest.raises(PreflightError, match="which is no file"):
        up(region, Options(vocabulary=tmp_path / "none"), "us-east", progress=progress)
    assert progress.notes == []
    assert head.poll() is None


def test_regions_that_a_fleet_does_not_have_are_announced_before_they_are_ended(us_east):
    region, head = us_east
    alive = []

    class Looking(Kept):
        def note(self, text):
            alive.append(head.poll() is None)
            super().note(text)

    progress = Looking()
    LocalFleet(region.fleet)._end_others([region], progress)
    assert progress.notes[0].startswith("this fleet does not have us-east, which runs: it is ended")
    assert alive == [True, False]
    assert progress.notes[1].startswith("ended 1 processes")


def test_what_will_be_ended_gives_its_memory_back():
    with subprocess.Popen([sys.executable, "-c", "x = bytes(range(256)) * 250_000; print(1, flush=True); input()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # fmt: skip
        process.stdout.readline()
        assert 64 <= preflight.held_memory_mb([ProcessId.of(process.pid)]) < 200
        process.communicate(b"\n")
    assert preflight.held_memory_mb([ProcessId(process.pid, 1.0, "gone")]) == 0
