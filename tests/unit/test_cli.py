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

from dayzero.cli.up import curl, record, text
from dayzero.config import load
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.keys import ensure_keys, operator_key
from dayzero.serving.local.ledger import MARK_VARIABLE, ProcessId
from dayzero.serving.local.lock import alone
from dayzero.serving.local.ports import RayPorts
from dayzero.serving.local.region import Started
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
    run = RunFolder(tmp_path / "run")
    run.make()
    ensure_keys(run)
    return run


@pytest.fixture
def gateway(run):
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
        state_of(run, server.server_port).write(run.state)
        yield answer
        server.shutdown()


def state_of(run, port):
    me = ProcessId.of(os.getpid())
    ports = RayPorts(gcs=1, dashboard=9, base=20_000)
    return RunState(
        run_id=f"{run.mark}-1",
        phase="running",
        region="us-east",
        engine="sim",
        fleet_name="local.yaml",
        fleet_hash="x",
        host="127.0.0.1",
        http_port=port,
        ray=ports,
        ray_address="127.0.0.2:1",
        short_folder=str(run.path / "short"),
        started_at_s=time.time(),
    ).with_process(me)


@pytest.fixture
def straggler(run):
    """A process of the run, whose state file is not there."""
    variables = {**os.environ, MARK_VARIABLE: f"{run.mark}-1"}
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


def test_status_as_json_is_the_gateways_own(run, gateway):
    assert json.loads(command(run, "status", "--json").stdout) == STATUS


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
    assert json.loads(command(run, "status", "--json").stdout)["running"] is False


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


def test_the_curl_line_takes_the_key_from_its_file_and_parses_as_a_shell_would(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    line = curl(state_of(run, 8123), "smollm2-135m-instruct", run)
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://127.0.0.1:8123/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "smollm2-135m-instruct"
    said = subprocess.run(["sh", "-c", f"echo {line}"], capture_output=True, text=True, check=True).stdout
    assert f"Authorization: Bearer {run.client_key.read_text().strip()}" in said


def test_what_up_prints_holds_all_that_a_client_needs_and_json_names_the_keys_file_only(run):
    fleet = load(ROOT / "deployments" / "local.yaml")
    started = Started(state_of(run, 8000), was_running=False)
    key = run.client_key.read_text().strip()
    shown = text(started, fleet, run)
    for words in ("http://127.0.0.1:8000/v1", key, "curl ", "http://127.0.0.1:9", "make down"):
        assert words in shown
    assert key not in json.dumps(record(started, fleet, run))


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


def test_an_interrupted_command_says_so_with_exit_code_130(run):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        state_of(run, silent.getsockname()[1]).write(run.state)
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


@pytest.mark.parametrize("loss", ["no file", "no folder", "not ours"])
def test_processes_whose_state_is_lost_are_said_to_run(run, straggler, loss):
    if loss == "no folder":
        shutil.rmtree(run.path)
    elif loss == "not ours":
        run.state.write_text("{")
    result = command(run, "status")
    assert result.returncode == 1
    assert "is lost, 1 of its processes still run" in result.stdout
    assert json.loads(command(run, "status", "--json").stdout)["processes"][0]["pid"] == straggler.pid


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
    result = command(RunFolder(tmp_path / "run"), *words)
    assert result.returncode == 1
    assert "DAYZERO_RUN" in result.stderr
    assert "Traceback" not in result.stderr
