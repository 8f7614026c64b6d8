"""What `up` prints, and how regions and ports are named on a command line."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dayzero.cli.names import split
from dayzero.cli.up import curl, record, text
from dayzero.config import Fleet, load
from dayzero.serving.local import kimi_k3
from dayzero.serving.local.fleet import Started
from dayzero.serving.local.options import ports_from
from tests.unit.test_cli import ROOT, command, run, state_of

__all__ = ["run"]  # a fixture


def test_the_curl_line_takes_the_key_from_its_file_and_parses_as_a_shell_would(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    line = curl(state_of(run.region("us-east"), 8123), "smollm2-135m-instruct", run)
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://127.0.0.1:8123/v1/chat/completions"]
    body = json.loads(words[-1])
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("smollm2-135m-instruct", 0, 64)
    said = subprocess.run(["sh", "-c", f"echo {line}"], capture_output=True, text=True, check=True).stdout
    assert f"Authorization: Bearer {run.client_key.read_text().strip()}" in said


def test_what_up_prints_holds_all_that_a_client_needs_and_json_names_the_keys_file_only(run):
    fleet = load(ROOT / "deployments" / "local.yaml")
    started = [
        Started(state_of(run.region("us-east"), 8000), was_running=True),
        Started(state_of(run.region("eu-west"), 8001), was_running=False),
    ]
    key = run.client_key.read_text().strip()
    shown = text(started, fleet, run)
    for words in (
        "us-east was already running: smollm2-135m-instruct on 2 replicas of sim, kimi-k3 on 1 replica of sim.",
        "eu-west is ready: smollm2-135m-instruct on 1 replica of sim, kimi-k3 on 1 replica of sim.",
        "http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8001/v1",
        "http://127.0.0.1:9",
        "make down",
        str(run.region("eu-west").logs),
    ):
        assert words in shown
    assert shown.count(key) == 1
    assert [line.split('"model": ')[1].split(",")[0] for line in shown.splitlines() if "curl " in line] == [
        '"smollm2-135m-instruct"',
        '"kimi-k3"',
    ]
    assert "France" not in shown
    told = record(started, fleet, run)
    assert key not in json.dumps(told)
    assert [one["region"] for one in told["regions"]] == ["us-east", "eu-west"]
    assert told["regions"][1]["base_url"] == "http://127.0.0.1:8001/v1"
    assert Path(told["api_key_file"]).read_text().strip() == key


def k3_lines(run, fleet, *states):
    shown = text([Started(state, was_running=True) for state in states], fleet, run).splitlines()
    return [line for line in shown if line.startswith(("curl ", "Kimi K3", "make up"))]


def test_the_small_vocabulary_is_told_once_with_a_line_that_names_another(run):
    fleet = load(ROOT / "deployments" / "local.yaml")
    file = str(ROOT / "deployments" / "local.yaml")
    both = [
        replace(state_of(run.region(name), 8000), vocabulary=kimi_k3.SHIPPED, fleet_name=file, region=name)
        for name in ("us-east", "eu-west")
    ]
    said = k3_lines(run, fleet, *both)[2:]
    assert said == [
        f"Kimi K3's vocabulary: {kimi_k3.SHIPPED}",
        "make up VOCABULARY=/path/to/tiktoken.model",
    ]
    (_, one) = k3_lines(run, fleet, both[0])[2:]
    assert one == "make up REGION=us-east VOCABULARY=/path/to/tiktoken.model"
    elsewhere = [replace(state, fleet_name="/etc/a fleet.yaml") for state in both]
    assert k3_lines(run, fleet, *elsewhere)[3] == (
        "make up FLEET='/etc/a fleet.yaml' VOCABULARY=/path/to/tiktoken.model"
    )
    named = [replace(state, vocabulary="aaaa (/x)") for state in both]
    assert k3_lines(run, fleet, *named)[2:] == ["Kimi K3's vocabulary: aaaa (/x)"]


def test_a_fleet_of_one_model_is_tried_with_one_line(run):
    data = load(ROOT / "deployments" / "local.yaml").model_dump()
    for part, key in (("models", "name"), ("pools", "model")):
        data["serving"][part] = tuple(one for one in data["serving"][part] if one[key] == "kimi-k3")
    (line,) = k3_lines(run, Fleet.model_validate(data), state_of(run.region("us-east"), 8000))
    assert '"kimi-k3"' in line


@pytest.mark.parametrize("target", ["up", "edge"])
def test_make_hands_on_the_vocabulary(target):
    command = ["make", "-n", target, "VOCABULARY=a dir/tiktoken.model"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert " --vocabulary 'a dir/tiktoken.model'" in shown
    assert (
        "--vocabulary"
        not in subprocess.run(command[:3], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (None, None),
        ([], None),
        (["a,b"], ["a", "b"]),
        (["a", "b", "a"], ["a", "b"]),
        ([" a , b,"], ["a", "b"]),
    ],
)
def test_regions_may_be_named_one_by_one_or_with_commas(words, names):
    assert split(words) == names


def test_a_port_is_the_first_regions_and_the_others_follow_it():
    fleet = load(ROOT / "deployments" / "local.yaml")
    assert ports_from(9000, fleet, None) == {"us-east": 9000, "eu-west": 9001}
    assert ports_from(9000, fleet, ["eu-west"]) == {"eu-west": 9000}
    assert ports_from(9000, fleet, ["eu-west", "us-east"]) == {"us-east": 9000, "eu-west": 9001}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--engine", "sim", "--region", "us-eest"), "did you mean 'us-east'?"),
        (("up", "--region", "us-east", "--port", "8001"), "regions[1].http.port: port 8001 is us-east's"),
        (("up", "--port", "99999"), "--port 99999: a port is a number from 1 to 65535, and 2 regions"),
        (("up", "--port", "0", "--region", "us-east"), "--port 0: a port is a number from 1 to 65535."),
        (("down", "--region", "eu-west"), "No region 'eu-west' was ever started here; there are: us-east."),
        (("down", "--region", "../x"), "No region '../x' was ever started here"),
    ],
)
def test_a_region_that_is_none_is_one_message(run, words, said):
    result = command(run, *words)
    assert result.returncode == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not run.region("eu-west").path.exists()
