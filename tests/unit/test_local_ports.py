"""Ports are free when chosen, and a taken one is explained."""

import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.serving.local.claims import Claims
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.ports import BLOCK_PORTS, RayPorts, choose, holder_of, is_free, require_http_port


def any_port(_port):
    return True


@pytest.fixture
def taken():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_that_somebody_listens_on_is_not_free(taken):
    assert not is_free(taken)


def test_the_holder_of_a_port_is_named(taken):
    assert holder_of(taken).startswith(f"process {os.getpid()} (")


def test_a_taken_api_port_says_who_has_it_and_which_other_is_free(taken):
    with pytest.raises(PreflightError) as caught:
        require_http_port(taken, "127.0.0.1")
    message = caught.value.message
    assert f"Port {taken} is taken by process {os.getpid()}" in message
    other = int(message.split("--port ")[1].split(",")[0])
    assert other != taken
    assert is_free(other)


def test_a_port_whose_holder_will_have_ended_is_free_and_of_another_is_not(taken):
    require_http_port(taken, "127.0.0.1", ends=lambda pid: pid == os.getpid())
    with pytest.raises(PreflightError, match=f"Port {taken} is taken"):
        require_http_port(taken, "127.0.0.1", ends=lambda pid: pid != os.getpid())


def test_ports_of_rays_that_others_had_are_said():
    assert RayPorts(6379, 8265, 20_000).moved(6379, 8265) == ""
    assert RayPorts(6379, 8267, 20_000).moved(6379, 8265) == (
        "port 8265 is taken, so Ray's dashboard is at 8267"
    )
    assert "Ray's control store is at 6380" in RayPorts(6380, 8267, 20_000).moved(6379, 8265)


def test_a_free_api_port_is_accepted(taken):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    require_http_port(free, "127.0.0.1")


@given(st.sets(st.integers(20_000, 31_999), max_size=30), st.sets(st.integers(6379, 6390), max_size=5))
def test_chosen_ports_are_free_distinct_and_below_the_kernels_own(taken_inner, taken_wished):
    used = taken_inner | taken_wished
    ports = choose(6379, 8265, take=any_port, free=lambda port: port not in used)
    low, high = ports.workers
    inner = {ports.inner(offset) for offset in range(100)} | set(range(low, high + 1))
    assert len(inner) == BLOCK_PORTS
    assert not (inner | {ports.gcs, ports.dashboard}) & used
    assert not inner & {ports.gcs, ports.dashboard}
    assert max(inner) < 32_768
    assert ports.gcs == next(port for port in range(6379, 6400) if port not in used)


def test_a_block_that_failed_is_not_chosen_again():
    first = choose(6379, 8265, take=any_port, free=lambda _: True)
    second = choose(6379, 8265, take=any_port, free=lambda _: True, skip=frozenset({first.base}))
    assert second.base != first.base


def test_wished_ports_that_are_alike_become_two():
    ports = choose(6379, 6379, take=any_port, free=lambda _: True)
    assert ports.gcs != ports.dashboard


def test_no_free_block_is_an_error_and_not_a_guess():
    with pytest.raises(PreflightError, match="neighbouring"):
        choose(6379, 8265, take=any_port, free=lambda port: port < 10_000)


def test_ports_that_another_region_claims_are_not_chosen():
    claimed = {6379, 20_000}
    ports = choose(6379, 8265, take=lambda port: port not in claimed, free=lambda _: True)
    assert (ports.gcs, ports.base) == (6380, 20_000 + BLOCK_PORTS)


def test_a_claim_is_exclusive_on_this_machine_until_its_last_holder_ends():
    port = 61_000 + os.getpid() % 4000  # a name; nothing listens
    rival = Claims()
    with Claims() as claims:
        assert claims.take(port)
        assert claims.take(port)  # it is ours
        assert not rival.take(port)
        script = "print('up', flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=claims.descriptors,
            text=True,
        )
        assert child.stdout.readline() == "up\n"
    assert not rival.take(port)  # the child holds it on
    child.communicate("\n")
    assert rival.take(port)
    rival.keep_only(())
