"""The run's files: state, folders, logs, and what Serve's answer means."""

import fcntl
import importlib
import json
import os
import resource
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from dayzero.config import load
from dayzero.serving.local.errors import BusyError, PreflightError, StartError
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.lock import alone, holder
from dayzero.serving.local.logs import tail
from dayzero.serving.local.ports import RayPorts
from dayzero.serving.local.preflight import (
    needed_memory_mb,
    require_disk,
    require_memory,
    require_python_path,
)
from dayzero.serving.local.probe import get
from dayzero.serving.local.ray_cluster import RayCluster, driver_environment, ray_environment
from dayzero.serving.local.serve_view import ServeView
from dayzero.serving.local.short_folder import ShortFolder
from dayzero.serving.local.state import RunState

STATE = RunState(
    run_id="0011aabb-1",
    phase="starting",
    region="us-east",
    engine="sim",
    fleet_name="local.yaml",
    region_hash="abc",
    host="127.0.0.1",
    http_port=8000,
    ray=RayPorts(gcs=6379, dashboard=8265, base=20_000),
    ray_address="127.0.0.2:6379",
    short_folder="/x",
    store_url="unix:///x/store/valkey.sock",
    started_at_s=1.5,
).with_head(ProcessId(7, 2.25, "ray"))


def test_a_state_reads_back_as_it_was_written(tmp_path):
    STATE.write(tmp_path / "region.json")
    assert RunState.read(tmp_path / "region.json") == STATE
    kept = STATE.with_store(ProcessId(8, 2.0, "python valkey_program.py")).running()
    kept.write(tmp_path / "region.json")
    assert RunState.read(tmp_path / "region.json") == kept


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
    run = FleetFolder(tmp_path / "run").region("a-region-with-a-long-name")
    session = "session_2026-12-31_23-59-59_999999_4194304"
    for temporary in (str(deep), "/var/tmp", "/tmp", ""):
        short = run.short({"TMPDIR": temporary})
        assert len(os.fsencode(short.ray / session / "sockets" / "plasma_store.123")) <= 107
        assert len(os.fsencode(short.store_socket)) <= 107
        assert len(os.fsencode(short.haproxy / ("0" * 56) / "metrics.sock")) <= 97


def test_two_checkouts_do_not_share_a_mark_or_a_folder(tmp_path):
    one, two = FleetFolder(tmp_path / "one"), FleetFolder(tmp_path / "two")
    assert one.mark != two.mark
    regions = [folder.region(name) for folder in (one, two) for name in ("us-east", "eu-west")]
    assert len({region.mark for region in regions}) == 4
    assert len({region.short({}).path for region in regions}) == 4
    assert one.region_of(f"{two.region('us-east').mark}1") is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a.b", "-a", "x" * 64])
def test_what_is_no_regions_name_never_becomes_a_path(tmp_path, name):
    with pytest.raises(PreflightError, match="not a region's name"):
        FleetFolder(tmp_path).region(name)


def test_the_regions_of_a_folder_are_those_that_were_started_there(tmp_path):
    folder = FleetFolder(tmp_path / "run")
    assert folder.regions() == []
    for name in ("us-east", "models"):
        folder.region(name).make()
    assert [region.name for region in folder.regions()] == ["models", "us-east"]
    assert folder.models != folder.region("models").path
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_the_run_folder_can_be_named_and_else_lies_in_the_checkout():
    assert FleetFolder.default({"DAYZERO_RUN": "/a/b"}).path == Path("/a/b")
    assert FleetFolder.default({}).path == Path(__file__).resolve().parents[2] / ".run"


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
        (folder.ray / name / "logs" / "raylet.out").write_text("said")
        (folder.ray / name / "sockets").mkdir()
    (folder.ray / "session_latest").symlink_to(folder.ray / "session_2026-01-02_1")
    folder.keep_logs_only()
    left = {
        str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if "latest" not in str(path)
    }
    logs = "ray/session_2026-01-02_1/logs"
    assert left == {"ray", "ray/session_2026-01-02_1", logs, f"{logs}/raylet.out"}


def test_of_an_ended_run_without_logs_nothing_is_left(tmp_path):
    folder = ShortFolder(tmp_path / "short")
    folder.make()
    (folder.ray / "session_2026-01-02_1" / "logs").mkdir(parents=True)
    (folder.store_socket).write_text("")
    folder.keep_logs_only()
    assert not folder.path.exists()


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
    with pytest.raises(PreflightError, match=r"--region NAME.*--engine sim"):
        require_memory(5_000, 4_999)
    require_memory(5_000, 5_000)
    with pytest.raises(PreflightError, match="DAYZERO_RUN"):
        require_disk({tmp_path / "not" / "yet": 10**12})


def test_the_memory_of_all_regions_to_be_started_is_asked_for():
    fleet = load(Path(__file__).resolve().parents[2] / "deployments" / "local.yaml").with_engine("sim")
    each = [needed_memory_mb(fleet, name) for name in ("us-east", "eu-west")]
    assert each[0] > each[1] > 1_000
    one = load_with(fleet, {"url": "redis://store:6379"})
    assert needed_memory_mb(one, "us-east") == each[0] - 268  # a store of its owner's is not on this machine


def test_what_a_gateway_may_remember_of_prompts_is_asked_for():
    fleet = load(Path(__file__).resolve().parents[2] / "deployments" / "local.yaml").with_engine("sim")
    data = fleet.model_dump()
    data["serving"]["models"][1]["frontend"]["options"] = {"cache_bytes": 320 * 1024**2 + 1_000_000_000}
    larger = type(fleet).model_validate(data)
    for name in ("us-east", "eu-west"):
        assert needed_memory_mb(larger, name) == needed_memory_mb(fleet, name) + 1_000


def load_with(fleet, redis):
    data = fleet.model_dump()
    data["infrastructure"]["regions"][0]["redis"] = redis
    return type(fleet).model_validate(data)


def test_start_errors_keep_their_log_when_pickled():
    import pickle

    error = pickle.loads(pickle.dumps(StartError("it failed", log="because")))
    assert (error.message, error.log) == ("it failed", "because")


def test_the_state_is_json_that_other_tools_can_read(tmp_path):
    STATE.write(tmp_path / "region.json")
    assert json.loads((tmp_path / "region.json").read_text())["ray"]["gcs"] == 6379
