"""Ray Serve's configuration of HAProxy, mended."""

import resource

import pytest

from dayzero.serving.local.haproxy import max_connections
from dayzero.serving.local.haproxy_program import UnknownConfigurationError, mend

RAYS = """global
    maxconn 100
defaults
    mode http
    timeout client 60s
    timeout http-keep-alive 90s
    option splice-request
    errorfile 502 /x/500.http
frontend prometheus
    bind :9101
frontend http_frontend
    bind *:8000
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path not found."
listen stats
  bind *:8404
"""


def test_the_inner_listeners_are_bound_to_loopback_and_the_api_where_its_fleet_says():
    binds = [line.strip() for line in mend(RAYS).splitlines() if "bind " in line]
    assert binds == ["bind 127.0.0.1:9101", "bind *:8000", "bind 127.0.0.1:8404"]


def test_what_is_not_mended_stays_as_it_was():
    kept = [line for line in mend(RAYS).splitlines() if line in RAYS.splitlines()]
    assert len(kept) == len(RAYS.splitlines()) - 6
    assert "errorfile" not in mend(RAYS)
    assert "splice" not in mend(RAYS)
    assert mend(RAYS).count("http-keep-alive") == 1


def test_to_mend_twice_is_to_mend_once():
    assert mend(mend(RAYS)) == mend(RAYS)


@pytest.mark.parametrize(
    ("line", "section"),
    [
        ("    bind :9101\n", "frontend prometheus"),
        ("  bind *:8404\n", "listen stats"),
        ("defaults\n", "defaults"),
        ("status 404", "backend default_backend"),
    ],
)
def test_a_configuration_that_is_not_known_is_refused(line, section):
    with pytest.raises(UnknownConfigurationError, match=section):
        mend(RAYS.replace(line, ""))


@pytest.mark.parametrize(
    ("open_files", "connections"),
    [(1024, 262), (20_000, 9_750), (10**6, 20_000), (resource.RLIM_INFINITY, 20_000), (100, 100)],
)
def test_as_many_clients_may_connect_as_there_are_files_for(open_files, connections):
    assert max_connections(open_files) == connections
