"""What the commands print can be used as it stands; exit codes are the documented ones."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dayzero.cli.region_table import print_region
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.keys import ensure_keys, operator_key
from dayzero.serving.local.ledger import MARK_VARIABLE, ProcessId
from dayzero.serving.local.lock import alone
from dayzero.serving.local.ports import RayPorts
from dayzero.serving.local.state import RunState

ROOT = Path(__file__).resolve().parents[2]
ROOTS = os.pathsep.join(str(ROOT / name) for name in ("platform", "router", "deployments"))
STATUS = {
    "region": "us-east",
    "ready": True,
    "reason": "every model answered lately",
    "models": [
        {
            "model": "smollm2-135m-instruct",
            "replicas": [
                {
                    "replica": "aaaa1111",
                    "health": "ok",
                    "doing": "generating 3",
                    "running": 3,
                    "waiting": 2,
                    "kv_usage": 0.25,
                    "prompt_tokens_total": 12345,
                    "cached_tokens_total": 678,
                    "generated_tokens_total": 90,
                    "up_s": 61.0,
                },
                {"replica": "bbbb2222", "health": "unknown", "doing": "has not reported yet"},
            ],
        }
    ],
    "gateway": {"in_flight": 5, "requests_total": 9, "uptime_s": 12.0},
}


@pytest.fixture
def run(tmp_path):
    """A run folder in which us-east was started."""
    run = FleetFolder(tmp_path / "run")
    run.make()
    run.region("us-east").make()
    ensure_keys(run)
    return run


@pytest.fixture
def us_east(run):
    return run.region("us-east")


@pytest.fixture
def gateway(run, us_east):
    """A gateway that answers one path, to the operator only."""
    answer = {"status": 200, "body": STATUS}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            mine = self.headers["Authorization"] == f"Bearer {operator_key(run)}"
            known = self.path == "/internal/v1/status"
            self.send_response(answer["status"] if mine and known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer["body"]).encode())

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state_of(us_east, server.server_port).write(us_east.state)
        yield answer
        server.shutdown()


def state_of(region, port):
    me = ProcessId.of(os.getpid())
    ports = RayPorts(gcs=1, dashboard=9, base=20_000)
    return RunState(
        run_id=f"{region.mark}1",
        phase="running",
        region=region.name,
        engine="sim",
        fleet_name="local.yaml",
        region_hash="x",
        host="127.0.0.1",
        http_port=port,
        ray=ports,
        ray_address="127.0.0.2:1",
        short_folder=str(region.path / "short"),
        store_url="redis://store:6379/0",
        started_at_s=time.time(),
    ).with_head(me)


@pytest.fixture
def straggler(us_east):
    """A process of the region, whose state file is not there."""
    variables = {**os.environ, MARK_VARIABLE: f"{us_east.mark}1"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=variables) as process:
        yield process
        process.kill()


def environment(run):
    own = {"DAYZERO_RUN": str(run.path), "PYTHONPATH": ROOTS, "COLUMNS": "100"}
    own["PYTHONUNBUFFERED"] = ""  # what a write meets at the end is met at the end, as where a person runs it
    return os.environ | own


def command(run, *words):
    program = [sys.executable, "-m", "dayzero.cli.main", *words]
    return subprocess.run(program, env=environment(run), capture_output=True, text=True, check=False, cwd="/")


def test_status_shows_every_replica_and_what_is_absent_stays_blank(run, gateway):
    result = command(run, "status")
    assert result.returncode == 0, result.stderr
    for words in ("us-east: ready", "5 in flight", "generating 3", "3 + 2", "25%", "12,345 (678)", "61 s"):
        assert words in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if "bbbb2222" in line]
    assert line.split() == ["bbbb2222", "has", "not", "reported", "yet"]
    assert "running +" in result.stdout
    assert "a replica's own: two requests at its start" in result.stdout
    assert [line for line in result.stdout.splitlines() if line and not line.strip()] == []


def test_one_is_not_said_in_the_plural(run, gateway):
    gateway["body"] = STATUS | {"gateway": {"in_flight": 0, "requests_total": 1, "uptime_s": 1.0}}
    assert "0 in flight, 1 request, up 1 s" in command(run, "status").stdout


def test_status_as_json_is_the_gateways_own_by_region_and_what_this_machine_knows(run, gateway):
    for words in (["status", "--json"], ["status", "us-east", "--json"]):
        shown = json.loads(command(run, *words).stdout)
        assert set(shown) == {"us-east"}
        local = shown["us-east"].pop("local")
        assert shown["us-east"] == STATUS
        assert local["base_url"].startswith("http://127.0.0.1:")
        assert local["store"] == {"url": "redis://store:6379/0"}


def test_the_worst_region_makes_the_exit_code(run, gateway):
    """eu-west's cluster has ended unasked: its state names a process of long ago."""
    eu_west = run.region("eu-west")
    eu_west.make()
    state_of(eu_west, 1).with_head(ProcessId(os.getpid(), 1.0, "ray")).write(eu_west.state)
    result = command(run, "status")
    assert result.returncode == 3
    lines = result.stdout.splitlines()
    assert lines[0].startswith("us-east: ready")
    assert any(line.startswith("eu-west: its cluster has ended unasked") for line in lines)
    assert command(run, "status", "us-east").returncode == 0
    shown = json.loads(command(run, "status", "--json").stdout)
    assert [shown[name]["ready"] for name in ("us-east", "eu-west")] == [True, False]


def test_status_says_how_the_embedded_store_is(run, us_east, gateway):
    port = RunState.read(us_east.state).http_port
    for keeper, words in (
        (ProcessId.of(os.getpid()), "no Valkey runs, requests go on without it; its keeper starts it again"),
        (ProcessId(os.getpid(), 1.0, "python"), "nothing keeps it running, `dayzero up` mends that"),
    ):
        state_of(us_east, port).with_store(keeper).write(us_east.state)
        assert words in command(run, "status").stdout


@pytest.mark.parametrize(
    ("store", "line"),
    [
        ({"url": "redis://s", "pid": 7, "answers": True, "kept": True}, "store: Valkey (process 7) answers"),
        (
            {"url": "redis://s", "pid": 7, "answers": False, "kept": True},
            "store: Valkey (process 7) does not answer, requests go on without it",
        ),
        ({"url": "redis://s:6379"}, "store: redis://s:6379"),
    ],
)
def test_the_line_of_a_regions_store(us_east, capsys, store, line):
    print_region(state_of(us_east, 1), STATUS | {"local": {"store": store}})
    assert line in capsys.readouterr().out.splitlines()


def test_status_of_a_region_that_is_not_ready_is_1_and_says_why(run, gateway):
    gateway["body"] = {**STATUS, "ready": False, "reason": "no canary was answered yet"}
    result = command(run, "status")
    assert result.returncode == 1
    assert "not ready (no canary was answered yet)" in result.stdout


def test_status_of_a_gateway_that_fails_shows_the_processes_and_what_to_do(run, gateway):
    gateway["status"] = 503
    result = command(run, "status")
    assert result.returncode == 1
    assert "it answers 503" in result.stdout
    assert "dayzero up" in result.stdout


def test_status_of_nothing_is_3_and_says_how_to_start(run):
    result = command(run, "status")
    assert result.returncode == 3
    assert "make up" in result.stdout
    assert "does not run" not in result.stdout  # region by region
    assert json.loads(command(run, "status", "--json").stdout)["us-east"]["running"] is False
    named = command(run, "status", "us-east", "--json")
    assert named.returncode == 3
    assert json.loads(named.stdout)["us-east"]["running"] is False
    assert "--region us-east" in command(run, "status", "us-east").stdout


@pytest.mark.parametrize("words", [("--help",), ("status",), ("version",)])
def test_asking_imports_neither_ray_nor_an_engine(run, words):
    script = (
        "import sys; sys.argv[1:] = sys.argv[1:]\n"
        "from dayzero.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'ray', 'torch', 'vllm', 'fastapi', 'pydantic', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "DAYZERO_RUN": str(run.path), "PYTHONPATH": ROOTS}
    program = [sys.executable, "-c", script, *words]
    result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert result.stderr.strip().splitlines()[-1] == "[]"


def test_a_fleet_that_cannot_be_read_is_one_message_and_no_traceback(run, tmp_path):
    result = command(run, "up", str(tmp_path / "none.yaml"))
    assert result.returncode == 1
    assert "none.yaml" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_has_enough_leaves_the_exit_code_as_it_was(run, gateway):
    rows = [{"replica": f"r{n:07}", "health": "ok"} for n in range(3_000)]  # more than a pipe holds
    gateway["body"] = {**STATUS, "ready": False, "models": [{"model": "m", "replicas": rows}]}
    for words in (["status"], ["status", "--json"]):
        line = shlex.join([sys.executable, "-m", "dayzero.cli.main", *words])
        script = f"{line} | head -n 1; echo ${{PIPESTATUS[0]}}"
        result = subprocess.run(
            ["bash", "-c", script], env=environment(run), capture_output=True, text=True, check=True
        )
        assert result.stdout.splitlines()[-1] == "1"
        assert result.stderr == ""


@pytest.mark.parametrize("words", [("status",), ("status", "--json"), ("version",), ("--help",), ("down",)])
def test_a_full_disk_is_one_message_and_exit_code_1(run, words):
    program = [sys.executable, "-m", "dayzero.cli.main", *words]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            program, env=environment(run), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
        silent = subprocess.run(program, env=environment(run), stdout=full, stderr=full, check=False)
    assert (result.returncode, silent.returncode) == (1, 1)
    assert "No space left on device" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_interrupted_command_says_so_with_exit_code_130(run, us_east):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        state_of(us_east, silent.getsockname()[1]).write(us_east.state)
        program = [sys.executable, "-m", "dayzero.cli.main", "status"]
        with subprocess.Popen(program, env=environment(run), stderr=subprocess.PIPE, text=True) as asking:
            silent.accept()[0].recv(1)  # it waits for the answer now
            asking.send_signal(signal.SIGINT)
            assert asking.wait(30) == 130
            assert asking.stderr.read().strip() == "dayzero: stopped."


def test_a_failure_as_json_is_one_value_on_standard_output(run, tmp_path):
    result = command(run, "up", str(tmp_path / "none.yaml"), "--json")
    error = json.loads(result.stdout)["error"]
    assert result.returncode == 1
    assert set(error) == {"message", "code", "log"}
    assert error["message"] in result.stderr


def test_down_as_json_lists_what_was_ended(run, straggler):
    pid = straggler.pid
    result = command(run, "down", "--json")
    assert result.returncode == 0
    (ended,) = json.loads(result.stdout)["ended"]
    assert (ended["pid"], set(ended)) == (pid, {"pid", "name"})
    assert straggler.wait(10) == -signal.SIGTERM
    assert json.loads(command(run, "down", "--json").stdout) == {"ended": []}


def test_down_of_one_region_leaves_what_is_anothers(run, straggler):
    run.region("eu-west").make()
    assert command(run, "down", "--region", "eu-west").stdout == "Nothing was running.\n"
    assert straggler.poll() is None
    assert command(run, "down", "--region", "eu-west,us-east").stdout.startswith("Ended 1 processes")
    assert straggler.wait(10) == -signal.SIGTERM


def test_a_process_of_an_earlier_version_is_said_and_ended(run):
    """It had one region, and the region was not in the mark."""
    variables = {**os.environ, MARK_VARIABLE: f"{run.mark}-0011aabb"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=variables) as process:
        result = command(run, "status")
        assert (result.returncode, result.stdout.split(";")[0]) == (
            3,
            "1 process of an earlier run is left",
        )
        assert command(run, "down").returncode == 0
        assert process.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("loss", ["no file", "no folder", "not ours"])
def test_processes_whose_state_is_lost_are_said_to_run(run, straggler, loss):
    if loss == "no folder":
        shutil.rmtree(run.path)
    elif loss == "not ours":
        run.region("us-east").state.write_text("{")
    result = command(run, "status")
    assert result.returncode == 1
    assert "is lost, 1 of its processes still run" in result.stdout
    assert (
        json.loads(command(run, "status", "--json").stdout)["us-east"]["processes"][0]["pid"] == straggler.pid
    )


def test_a_state_that_another_command_has_not_written_yet_is_not_called_lost(run, straggler):
    with alone(run.lock):
        result = command(run, "status")
    assert result.returncode == 1
    assert f"process {os.getpid()}" in result.stdout


def test_a_lost_operator_key_is_said_instead_of_the_gateways_refusal(run, gateway):
    run.operator_key.unlink()
    result = command(run, "status")
    assert result.returncode == 1
    assert "operator.key is missing; `make down && make up`" in result.stdout


@pytest.mark.parametrize("words", [("down",), ("up", "--engine", "sim")])
def test_a_run_folder_that_is_a_file_is_one_message(tmp_path, words):
    (tmp_path / "run").write_text("")
    result = command(FleetFolder(tmp_path / "run"), *words)
    assert result.returncode == 1
    assert "DAYZERO_RUN" in result.stderr
    assert "Traceback" not in result.stderr


def test_status_says_how_much_was_cached_and_how_right_the_router_was(run, gateway):
    assert "cache" not in command(run, "status").stdout.split("smollm2")[0]
    gateway["body"] = STATUS | {"cache": {"window_s": 600.0, "hit_rate": 0.625, "phantom_rate": 0.0312}}
    line = next(line for line in command(run, "status").stdout.splitlines() if line.startswith("cache"))
    assert line == (
        "cache, last 10 min: 62% of prompt tokens were cached, 3.1% of those predicted to be cached were not"
    )


def test_status_says_which_replica_gets_nothing_for_its_cache_and_why(run, gateway):
    (model,) = STATUS["models"]
    first, *others = model["replicas"]
    told = [first | {"no_affinity": "cache group 0 is wrong"}, *others]
    gateway["body"] = STATUS | {"models": [model | {"replicas": told}]}
    said = command(run, "status").stdout.splitlines()
    assert "aaaa1111 gets nothing for what it has cached: cache group 0 is wrong" in said
    assert not [line for line in said if line.startswith("bbbb2222 gets")]
