"""`dayzero status`: which regions are shown, and what their names may be."""

import json
from dataclasses import replace

import pytest

from tests.unit.test_cli import ROOT, command, gateway, run, state_of, us_east

__all__ = ["gateway", "run", "us_east"]  # fixtures


def test_a_region_that_was_ended_does_not_vanish(run, gateway):
    run.region("eu-west").make()
    result = command(run, "status")
    assert result.returncode == 3
    assert result.stdout.splitlines()[-1].startswith("eu-west: does not run.")
    assert list(json.loads(command(run, "status", "--json").stdout)) == ["us-east", "eu-west"]
    assert command(run, "status", "us-east").returncode == 0


@pytest.mark.parametrize(
    "words", [("eu-west,us-east",), ("eu-west", "us-east"), ("--region", "eu-west,us-east")]
)
def test_status_shows_the_regions_that_are_named(run, gateway, words):
    assert list(json.loads(command(run, "status", *words, "--json").stdout)) == ["eu-west", "us-east"]


@pytest.mark.parametrize("name", ["us-est", "US EAST", "../x"])
def test_a_misspelt_region_is_a_usage_error_that_names_those_there_are(run, gateway, name):
    run.region("ap-south").make()
    result = command(run, "status", f"us-east,{name}")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"dayzero: There is no region '{name}' here; there are: us-east, ap-south, eu-west.\n"
    )  # eu-west: of the checkout's fleet, and never started
    said = command(run, "status", name, "--json")
    assert (said.returncode, json.loads(said.stdout)["error"]["code"]) == (2, "usage")


def test_an_ended_region_that_the_fleet_no_longer_has_is_left_out(run, us_east, gateway):
    state = replace(state_of(us_east, 1), fleet_name=str(ROOT / "deployments" / "local.yaml"))
    state.write(us_east.state)
    for name in ("eu-west", "ap-south"):
        run.region(name).make()
    assert list(json.loads(command(run, "status", "--json").stdout)) == ["us-east", "eu-west"]
    assert "ap-south: does not run" in command(run, "status", "ap-south").stdout
