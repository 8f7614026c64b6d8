"""The keys of a run folder: made once, kept, and never changed under a region that runs."""

import contextlib
import os
import stat
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dayzero.config import load
from dayzero.serving.local.errors import LostKeyError
from dayzero.serving.local.fleet import LocalFleet
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.keys import ensure_keys, missing, operator_key
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.state import RunState
from dayzero.tenancy import Role, issue_key, load_keys
from tests.unit.test_local_state import STATE


def test_keys_are_made_once_are_the_owners_alone_and_open_the_gateway(tmp_path):
    run = FleetFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    key = run.client_key.read_text().strip()
    ensure_keys(run)
    assert run.client_key.read_text().strip() == key
    ring = load_keys(run.key_digests)
    assert ring.authenticate([f"Bearer {key}"]).id == "local"
    assert ring.authenticate([f"Bearer {operator_key(run)}"], Role.OPERATOR).role is Role.OPERATOR
    assert ring.authenticate([f"Bearer {run.peer_key.read_text().strip()}"], Role.PEER).role is Role.PEER
    secrets = (run.client_key, run.operator_key, run.peer_key, run.key_digests, run.secret, run.ray_token)
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert key not in run.key_digests.read_text()


def test_a_lost_key_is_made_anew_together_with_its_digest(tmp_path):
    run = FleetFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    run.client_key.unlink()
    ensure_keys(run)
    key = run.client_key.read_text().strip()
    assert load_keys(run.key_digests).authenticate([f"Bearer {key}"]).id == "local"


@pytest.mark.parametrize(
    "lost", ["client_key", "operator_key", "peer_key", "key_digests", "ray_token", "secret"]
)
def test_only_what_is_missing_is_made_and_every_key_there_is_goes_on_working(tmp_path, lost):
    run = FleetFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    others = issue_key(run.key_digests, "someone")
    names = {"client_key", "operator_key", "peer_key", "key_digests", "ray_token", "secret"}
    before = {name: getattr(run, name).read_bytes() for name in names}
    getattr(run, lost).unlink()
    assert missing(run) == [getattr(run, lost)]
    ensure_keys(run)
    assert missing(run) == []
    for name in names - {lost, "key_digests"}:
        assert getattr(run, name).read_bytes() == before[name]
    ring = load_keys(run.key_digests)
    ring.authenticate([f"Bearer {run.client_key.read_text().strip()}"])
    ring.authenticate([f"Bearer {operator_key(run)}"], Role.OPERATOR)
    if lost != "key_digests":
        assert ring.authenticate([f"Bearer {others}"]).id == "someone"
        assert run.key_digests.read_bytes().startswith(before["key_digests"])


def test_a_region_that_runs_with_a_lost_key_is_left_alone_and_says_what_to_do(tmp_path):
    run = FleetFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    fleet = load(Path(__file__).resolve().parents[2] / "deployments" / "local.yaml").with_engine("sim")

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *words):
            pass

    class Silent:
        def note(self, text):
            pass

        @contextlib.contextmanager
        def step(self, name):
            yield self

        def say(self, text):
            pass

    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        fleet = fleet.with_ports({"us-east": port})
        region = run.region("us-east")
        region.make()
        state = replace(STATE, phase="running", region_hash=fleet.hash_of("us-east"), http_port=port)
        state.with_head(ProcessId.of(os.getpid())).write(region.state)

        def up(*regions):
            return LocalFleet(run).up(fleet, fleet_name="x", progress=Silent(), regions=regions)

        (again,) = up("us-east")
        assert again.was_running
        run.client_key.unlink()
        for regions in (("us-east",), ("eu-west",)):  # another region would get other keys than this one has
            with pytest.raises(LostKeyError, match=r"run/key is missing. `make down && make up`"):
                up(*regions)
        server.shutdown()
    assert RunState.read(region.state) is not None
    assert not run.region("eu-west").path.exists()
