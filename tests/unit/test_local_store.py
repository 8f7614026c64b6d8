"""A region's Valkey: a real server, kept running by its keeper, ended with its region."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from itertools import pairwise

import psutil
import pytest

from dayzero.config import parse
from dayzero.serving.local import ledger, runs, store, valkey_program
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.ledger import MARK_VARIABLE, ProcessId

MEMORY_BYTES = 16 * 1024 * 1024


@pytest.fixture
def region(tmp_path):
    region = FleetFolder(tmp_path / "run").region("us-east")
    region.make()
    region.short().make()
    yield region
    for process in ledger.find(region.mark):
        process.send(signal.SIGCONT)
    runs.end([region])
    assert not region.short().path.exists()


@pytest.fixture
def keeper(region):
    return store.start(region, MEMORY_BYTES, f"{region.mark}1")


def ask(region, *words):
    """One command in the store's own protocol, and the first 64 kB of the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.connect(str(region.short().store_socket))
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        return connection.recv(65_536).decode()


def wait_until(true, timeout_s=10.0):
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.01)


def another_answers(region, than):
    now = store.server(region.short())
    return now is not None and now.pid != than.pid and store.answers(region.short().store_socket)


def test_it_answers_at_a_private_socket_and_at_no_port(region, keeper):
    server = store.server(region.short())
    assert ask(region, "PING") == "+PONG\r\n"
    assert psutil.Process(server.pid).net_connections(kind="inet") == []
    assert stat.S_IMODE(region.short().store_socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(region.short().path.stat().st_mode) == 0o700
    assert {process.pid for process in ledger.find(region.mark)} == {keeper.pid, server.pid}


def test_it_keeps_nothing_on_disk_and_drops_first_what_expires_first(region, keeper):
    assert ask(region, "CONFIG", "GET", "maxmemory") == f"*2\r\n$9\r\nmaxmemory\r\n$8\r\n{MEMORY_BYTES}\r\n"
    ask(region, "XADD", "feed", "*", "k", "v")
    ask(region, "SET", "late", "x" * 1000, "EX", "100000")
    for number in range(400):
        assert ask(region, "SET", f"soon-{number}", "x" * 50_000, "EX", "1000") == "+OK\r\n"
    assert ask(region, "XLEN", "feed") == ":1\r\n"
    assert ask(region, "EXISTS", "late") == ":1\r\n"
    assert ask(region, "EXISTS", *(f"soon-{number}" for number in range(400))) != ":400\r\n"
    runs.end([region])
    assert not region.short().store.exists()


def test_a_server_that_is_killed_is_back_soon_and_empty(region, keeper):
    ask(region, "SET", "key", "value")
    for _ in range(2):
        server = store.server(region.short())
        began_s = time.monotonic()
        server.send(signal.SIGKILL)
        wait_until(lambda server=server: another_answers(region, server))
        assert time.monotonic() - began_s < 5, "as long as the keeper's longest pause"
    assert ask(region, "EXISTS", "key") == ":0\r\n"
    assert keeper.alive
    assert "The server ended (signal 9)" in (region.logs / "valkey.log").read_text()


def test_a_frozen_server_is_left_alone_and_goes_on_with_what_it_held(region, keeper):
    ask(region, "SET", "key", "value")
    server = store.server(region.short())
    server.send(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(server.pid).status() == psutil.STATUS_STOPPED)
    assert not store.answers(region.short().store_socket, timeout_s=0.3)
    assert server.alive
    server.send(signal.SIGCONT)
    assert ask(region, "GET", "key") == "$5\r\nvalue\r\n"


def test_a_region_with_a_frozen_server_ends(region, keeper):
    server = store.server(region.short())
    server.send(signal.SIGSTOP)
    ended = runs.end([region])
    assert {process.pid for process in ended} == {keeper.pid, server.pid}
    assert ledger.find(region.mark) == []


def test_a_keeper_that_is_told_to_end_ends_its_server_first(region, keeper):
    server = store.server(region.short())
    keeper.send(signal.SIGTERM)
    wait_until(lambda: not keeper.alive)
    assert not server.alive


def test_a_server_outlives_its_keeper_and_a_new_start_takes_its_place(region, keeper):
    server = store.server(region.short())
    keeper.send(signal.SIGKILL)
    wait_until(lambda: not keeper.alive)
    assert store.answers(region.short().store_socket)
    again = store.start(region, MEMORY_BYTES, f"{region.mark}1")
    assert again.alive
    assert not server.alive
    assert {process.pid for process in ledger.find(region.mark)} == {
        again.pid,
        store.server(region.short()).pid,
    }


def test_a_server_that_ends_at_once_is_tried_ever_more_seldom_and_the_keeper_still_ends_at_once(tmp_path):
    counted = tmp_path / "starts"
    command = ["/bin/sh", "-c", f"date +%s.%N >> {counted}; exit 3"]
    variables = {**os.environ, MARK_VARIABLE: f"test-{tmp_path.name}"}
    program = [sys.executable, "-I", "-S", valkey_program.__file__, *command]
    with subprocess.Popen(program, env=variables, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: counted.exists() and len(counted.read_text().splitlines()) >= 6)
        process.terminate()  # it pauses for 3.2 s now
        assert process.wait(2.5) == 0
        assert "The server ended (exit 3). In 0.8 s" in process.stdout.read()
    starts = [float(line) for line in counted.read_text().splitlines()]
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.6), strict=False))


def test_a_store_of_its_owners_is_used_as_it_is_named_and_shown_without_its_password(region):
    url = "rediss://someone:s3cret@store.example.com:6380/2?password=s3cret"
    fleet = parse(
        f"infrastructure: {{regions: [{{name: us-east, redis: {{url: '{url}'}}}}]}}\n"
        "serving:\n"
        "  models: [{name: tiny, weights: {source: path, path: /x}, max_model_tokens: 4096}]\n"
        "  pools: [{name: tiny, region: us-east, model: tiny, engine: sim, replicas: 1}]\n"
    )
    assert store.url(fleet, region) == url
    assert store.shown(url) == "rediss://store.example.com:6380/2"
    assert store.shown("unix:///run/valkey.sock") == "unix:///run/valkey.sock"
    assert store.shown("redis://[::1]:6379") == "redis://[::1]:6379"


def test_nobody_at_the_socket_is_no_answer(region):
    assert not store.answers(region.short().store_socket)
    assert store.server(region.short()) is None
    region.short().store_pid.write_text(f"{os.getpid()}\n")
    assert ProcessId.of(os.getpid()) is not None
    assert store.server(region.short()) is None  # a process, but no server
