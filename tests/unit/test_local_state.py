"""The run's files: state, folders, logs, and what Serve's answer means."""

import contextlib
import fcntl
import importlib
import json
import os
import resource
import stat
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dayzero.config import load
from dayzero.serving.local.errors import BusyError, LostKeyError, PreflightError, StartError
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.keys import ensure_keys, missing, operator_key
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.lock import alone, holder
from dayzero.serving.local.logs import tail
from dayzero.serving.local.ports import RayPorts
from dayzero.serving.local.preflight import require_disk, require_memory, require_python_path
from dayzero.serving.local.probe import get
from dayzero.serving.local.ray_cluster import RayCluster, driver_environment, ray_environment
from dayzero.serving.local.region import LocalRegion
from dayzero.serving.local.serve_view import ServeView
from dayzero.serving.local.short_folder import ShortFolder
from dayzero.serving.local.state import RunState
from dayzero.tenancy import Role, issue_key, load_keys

STATE = RunState(
    run_id="0011aabb-1",
    phase="starting",
    region="us-east",
    engine="sim",
    fleet_name="local.yaml",
    fleet_hash="abc",
    host="127.0.0.1",
    http_port=8000,
    ray=RayPorts(gcs=6379, dashboard=8265, base=20_000),
    ray_address="127.0.0.2:6379",
    short_folder="/x",
    started_at_s=1.5,
).with_process(ProcessId(7, 2.25, "ray"))


def test_a_state_reads_back_as_it_was_written(tmp_path):
    STATE.write(tmp_path / "region.json")
    assert RunState.read(tmp_path / "region.json") == STATE


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run_id": "x"}', '{"version": 9, "ray": 1}'])
def test_a_state_that_cannot_be_read_is_none(tmp_path, content):
    (tmp_path / "region.json").write_text(content)
    assert RunState.read(tmp_path / "region.json") is None


def test_no_state_file_is_none(tmp_path):
    assert RunState.read(tmp_path / "region.json") is None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_the_base_url_can_be_used_from_this_machine(host, url):
    assert replace(STATE, host=host).base_url == url


def test_rays_folder_leaves_room_for_a_socket_path_even_below_a_deep_temporary_folder(tmp_path):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    run = RunFolder(tmp_path / "run")
    session = "session_2026-12-31_23-59-59_999999_4194304"
    for temporary in (str(deep), "/var/tmp", "/tmp", ""):
        short = run.short({"TMPDIR": temporary})
        assert len(os.fsencode(short.ray / session / "sockets" / "plasma_store.123")) <= 107
        assert len(os.fsencode(short.haproxy / ("0" * 56) / "metrics.sock")) <= 97


def test_two_checkouts_do_not_share_a_mark_or_a_folder(tmp_path):
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    assert one.mark != two.mark
    assert one.short({}) != two.short({})


def test_the_run_folder_can_be_named_and_else_lies_in_the_checkout():
    assert RunFolder.default({"DAYZERO_RUN": "/a/b"}).path == Path("/a/b")
    assert RunFolder.default({}).path == Path(__file__).resolve().parents[2] / ".run"


def test_the_short_folder_is_ours_alone_whatever_lies_in_it(tmp_path):
    folder = ShortFolder(tmp_path / "dayzero-aabb")
    folder.path.mkdir(mode=0o755)
    folder.make()
    folder.ray.chmod(0o777)  # as Ray does
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_link_laid_in_the_short_folders_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dayzero-aabb").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PreflightError, match="not a folder of yours"):
        ShortFolder(tmp_path / "dayzero-aabb").make()


def test_of_an_ended_run_only_the_last_logs_are_kept(tmp_path):
    folder = ShortFolder(tmp_path / "short")
    folder.make()
    for name in ("session_2026-01-01_1", "session_2026-01-02_1"):
        (folder.ray / name / "logs").mkdir(parents=True)
        (folder.ray / name / "sockets").mkdir()
    (folder.ray / "session_latest").symlink_to(folder.ray / "session_2026-01-02_1")
    folder.keep_logs_only()
    left = {
        str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if "latest" not in str(path)
    }
    assert left == {"ray", "ray/session_2026-01-02_1", "ray/session_2026-01-02_1/logs"}


def test_keys_are_made_once_are_the_owners_alone_and_open_the_gateway(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    key = run.client_key.read_text().strip()
    ensure_keys(run)
    assert run.client_key.read_text().strip() == key
    ring = load_keys(run.key_digests)
    assert ring.authenticate([f"Bearer {key}"]).id == "local"
    assert ring.authenticate([f"Bearer {operator_key(run)}"], Role.OPERATOR).role is Role.OPERATOR
    secrets = (run.client_key, run.operator_key, run.key_digests, run.secret, run.ray_token)
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert key not in run.key_digests.read_text()


def test_a_lost_key_is_made_anew_together_with_its_digest(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    run.client_key.unlink()
    ensure_keys(run)
    key = run.client_key.read_text().strip()
    assert load_keys(run.key_digests).authenticate([f"Bearer {key}"]).id == "local"


@pytest.mark.parametrize("lost", ["client_key", "operator_key", "key_digests", "ray_token", "secret"])
def test_only_what_is_missing_is_made_and_every_key_there_is_goes_on_working(tmp_path, lost):
    run = RunFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    others = issue_key(run.key_digests, "someone")
    names = {"client_key", "operator_key", "key_digests", "ray_token", "secret"}
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
    run = RunFolder(tmp_path / "run")
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
        port, region = server.server_port, fleet.infrastructure.regions[0].name
        fleet = fleet.with_port(port, region)
        state = replace(
            STATE, phase="running", region=region, fleet_hash=fleet.hash, http_port=port, processes=()
        )
        state.with_process(ProcessId.of(os.getpid())).write(run.state)
        again = LocalRegion(run).up(fleet, region, fleet_name="x", progress=Silent())
        assert again.was_running
        run.client_key.unlink()
        with pytest.raises(LostKeyError, match=r"run/key is missing. `make down && make up`"):
            LocalRegion(run).up(fleet, region, fleet_name="x", progress=Silent())
        server.shutdown()
    assert RunState.read(run.state) is not None


def test_a_lock_held_by_one_that_has_not_written_its_id_gives_no_command_to_kill_it(tmp_path):
    path = tmp_path / "region.lock"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="Another command is starting") as caught, alone(path):
            pass
        assert "kill" not in caught.value.message
        other.write("4711")
        other.flush()
        with pytest.raises(BusyError, match="kill 4711"), alone(path):
            pass


def test_the_lock_names_its_holder_while_it_is_held(tmp_path):
    path = tmp_path / "region.lock"
    assert holder(path) is None
    with alone(path):
        assert holder(path).pid == os.getpid()
        with pytest.raises(BusyError, match=f"kill {os.getpid()}"), alone(path):
            pass
    assert holder(path) is None


@pytest.mark.parametrize("character", " \t$'\"&;(*")
def test_a_python_that_ray_cannot_start_its_workers_with_is_refused(character):
    require_python_path("/home/ü-1/a+b@c,d=e/.venv/bin/python3.11")
    with pytest.raises(PreflightError, match="Move the checkout"):
        require_python_path(f"/home/my{character}code/.venv/bin/python")


def _cluster(folder):
    return RayCluster(
        "0011aabb-1", STATE.ray, folder, folder / "h", folder / "haproxy", folder / "token", 4, 10**8
    )


def test_rays_environment_carries_the_mark_and_nothing_of_another_cluster(tmp_path):
    cluster = _cluster(tmp_path)
    present = {"RAY_ADDRESS": "10.0.0.1:6379", "PATH": "/bin", "PYTHONPATH": "platform", "no_proxy": "corp"}
    variables = ray_environment(cluster, present)
    assert variables["DAYZERO_RUN_ID"] == "0011aabb-1"
    assert "RAY_ADDRESS" not in variables
    assert variables["RAY_AUTH_MODE"] == "token"
    assert variables["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert variables["PYTHONPATH"] == str(Path("platform").absolute())
    assert variables["no_proxy"].startswith("corp,localhost,127.0.0.1")
    ports = [int(value) for name, value in variables.items() if name.endswith("_PORT")]
    assert len(ports) == len(set(ports)) > 5
    assert all(STATE.ray.base < port < STATE.ray.workers[0] for port in ports)


def test_silent_clients_are_let_go_and_a_dead_haproxy_is_missed_soon(tmp_path):
    variables = ray_environment(_cluster(tmp_path), {})
    assert int(variables["RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"]) <= 60
    assert float(variables["RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"]) <= 1
    files = 2 * int(variables["RAY_SERVE_HAPROXY_MAXCONN"])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert files < limit or limit == resource.RLIM_INFINITY


def test_a_driver_binds_handles_that_call_as_the_cluster_does(tmp_path):
    cluster = _cluster(tmp_path)
    variables = driver_environment(cluster, {})
    assert "RAY_SERVE_THROUGHPUT_OPTIMIZED" not in variables
    assert variables["RAY_SERVE_USE_GRPC_BY_DEFAULT"] == "1"
    assert ray_environment(cluster, {})["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_serve_makes_spans_only_where_a_collector_is_named(tmp_path, name):
    cluster = _cluster(tmp_path)
    exporter = "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH"
    assert ray_environment(cluster, {})[exporter] == ""
    assert ray_environment(cluster, {name: ""})[exporter] == ""
    module, _, function = ray_environment(cluster, {name: "http://127.0.0.1:4318"})[exporter].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    (tmp_path / "log").write_text("\n".join(f"line {n}" for n in range(50_000)) + "\n\n")
    assert tail(tmp_path / "log", 2) == "line 49998\nline 49999"
    assert tail(tmp_path / "none") == ""


def test_serves_answer_becomes_what_a_person_can_read():
    deployments = {
        "Gateway": {"status": "HEALTHY", "replicas": [{"replica_id": "g", "state": "RUNNING", "pid": 5}]},
        "Replica": {"status": "UPDATING", "replicas": [{"replica_id": r, "state": "STARTING"} for r in "ab"]},
    }
    view = ServeView.parse({"applications": {"dayzero": {"status": "DEPLOYING", "deployments": deployments}}})
    assert view.summary() == "Gateway 1 running · Replica 2 starting"
    assert not view.failed


def test_a_deployment_that_serve_gave_up_on_brings_its_reason():
    deployments = {"Replica": {"status": "DEPLOY_FAILED", "message": "ImportError: no vllm", "replicas": []}}
    view = ServeView.parse(
        {"applications": {"dayzero": {"status": "DEPLOY_FAILED", "deployments": deployments}}}
    )
    assert view.failed
    assert "ImportError" in view.message


@pytest.mark.parametrize("answer", [None, [], "x", {}, {"applications": None}, {"applications": {}}])
def test_an_answer_without_applications_is_nothing_yet(answer):
    assert ServeView.parse(answer) == ServeView(None, "", ())


def test_nobody_listening_is_a_value():
    answer = get("http://127.0.0.1:9/readyz", timeout_s=1)
    assert (answer.status, answer.ok, answer.json()) == (0, False, None)
    assert "refused" in answer.text


def test_too_little_memory_or_disk_says_what_to_do(tmp_path):
    with pytest.raises(PreflightError, match="--engine sim"):
        require_memory(5_000, 4_999)
    require_memory(5_000, 5_000)
    with pytest.raises(PreflightError, match="DAYZERO_RUN"):
        require_disk({tmp_path / "not" / "yet": 10**12})


def test_start_errors_keep_their_log_when_pickled():
    import pickle

    error = pickle.loads(pickle.dumps(StartError("it failed", log="because")))
    assert (error.message, error.log) == ("it failed", "because")


def test_the_state_is_json_that_other_tools_can_read(tmp_path):
    STATE.write(tmp_path / "region.json")
    assert json.loads((tmp_path / "region.json").read_text())["ray"]["gcs"] == 6379
