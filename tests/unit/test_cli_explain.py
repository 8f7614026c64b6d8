"""`dayzero explain`: a decision that people can read, from whichever region has it."""

import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.keys import ensure_keys, operator_key
from tests.unit.test_cli import command, state_of

ID = "0123456789abcdef01234567"
DECISION = {
    "version": 1,
    "request_id": f"req_{ID}",
    "at_s": 1_800_000_000.0,
    "region": "us-east",
    "model": "smollm2-135m-instruct",
    "tenant": "acme",
    "route": "/v1/chat/completions",
    "prompt_tokens": 4096,
    "attempts": [
        {
            "number": 1,
            "reason": "aaaa1111: first token in 0.500 s; 3072 of 4096 tokens cached",
            "candidates": [
                {
                    "replica": "aaaa1111",
                    "total_s": 0.5,
                    "reusable_tokens": 3072,
                    "parts": {"fixed_s": 0.1, "queue_s": 0.2, "prefill_s": 0.15, "round_trip_s": 0.05},
                },
                {
                    "replica": "bbbb2222",
                    "total_s": 1.5,
                    "reusable_tokens": None,
                    "parts": {"fixed_s": 0.1, "queue_s": 0.0, "prefill_s": 1.35, "round_trip_s": 0.05},
                },
            ],
            "candidates_total": 4,
            "skipped": [{"replica": "cccc3333", "why": "draining"}],
            "skipped_total": 1,
            "choice": {
                "home": "us-east",
                "target": "us-east",
                "why": "home",
                "reason": "home is best",
                "scores": [{"region": "us-east", "total_s": 0.5}, {"region": "eu-west", "total_s": 0.6}],
                "skipped": [],
            },
            "predicted_s": 0.5,
            "predicted_cached_tokens": 3072,
            "replica": "aaaa1111",
            "error": "engine_dead",
            "retried": True,
            "retry_reason": "EngineDeadError",
        },
        {
            "number": 2,
            "reason": "bbbb2222: first token in 1.500 s",
            "candidates": [],
            "candidates_total": 0,
            "skipped": [],
            "skipped_total": 0,
            "predicted_s": 1.5,
            "replica": "bbbb2222",
            "first_token_s": 1.25,
            "cached_tokens": 0,
        },
    ],
    "outcome": "ok",
    "status": 200,
    "error": None,
    "finish": "stop",
    "completion_tokens": 12,
    "first_token_s": 2.0,
    "total_s": 2.5,
    "degraded": ["think_not_closed", "call_cut"],
}


@pytest.fixture
def run(tmp_path):
    run = FleetFolder(tmp_path / "run")
    run.make()
    run.region("us-east").make()
    ensure_keys(run)
    return run


@pytest.fixture
def region(run):
    """A gateway that knows one decision, by two spellings of its id."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            mine = self.headers["Authorization"] == f"Bearer {operator_key(run)}"
            found = self.path in {f"/internal/v1/decisions/{one}" for one in (f"req_{ID}", f"chatcmpl-{ID}")}
            self.send_response((200 if found else 404) if mine else 401)
            self.end_headers()
            self.wfile.write(json.dumps(DECISION if found else {"error": {}}).encode())

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        us_east = run.region("us-east")
        state_of(us_east, server.server_port).write(us_east.state)
        yield
        server.shutdown()


@pytest.mark.parametrize("request_id", [f"req_{ID}", f"chatcmpl-{ID}"])
def test_explain_shows_candidates_parts_and_predictions_against_what_came(run, region, request_id):
    result = command(run, "explain", request_id)
    assert result.returncode == 0, result.stderr
    best, other = (
        line.split()
        for line in result.stdout.splitlines()
        if line.strip().startswith(("aaaa1111 *", "bbbb2222  "))
    )
    assert best == ["aaaa1111", "*", "0.500", "0.200", "0.150", "0.100", "0.050", "3,072"]
    assert other == ["bbbb2222", "1.500", "0.000", "1.350", "0.100", "0.050", "unknown"]
    for words in (
        f"req_{ID} in us-east",
        "for tenant acme, 4,096 prompt tokens",
        "taken by aaaa1111 (*)",
        "seconds: predicted to the first token in all",
        "by both margins of policy.regions.spill",
        "not in the record: 2 more candidates.",
        "passed over cccc3333: draining",
        "region: us-east (home); home is best",
        "eu-west     0.600",
        "predicted 0.500, real unknown",
        "failed with engine_dead: tried again (EngineDeadError)",
        "predicted 1.500, real 1.250",
        "cached tokens: predicted unknown, real 0 of 4,096",
        "Ended: ok (200), finish stop, 12 tokens, 2.500 s in all",
        "Mended in the answer: think_not_closed, call_cut (docs/kimi-k3-output.md).",
    ):
        assert words in result.stdout, result.stdout


def test_explain_as_json_is_the_records_themselves(run, region):
    said = json.loads(command(run, "explain", f"req_{ID}", "--json").stdout)
    assert said == {"decisions": [DECISION], "unanswered": [], "not_running": []}


def test_explain_leaves_no_line_of_spaces(run, region):
    shown = command(run, "explain", f"req_{ID}").stdout
    assert [line for line in shown.splitlines() if line and not line.strip()] == []


def test_explain_of_an_unknown_id_says_how_long_decisions_are_kept_and_who_does_not_run(run, region):
    unknown = "f" * 24
    result = command(run, "explain", unknown)
    assert result.returncode == 1
    assert "kept for an hour, while their region's store lives" in result.stdout
    assert "does not run" not in result.stdout
    run.region("eu-west").make()
    result = command(run, "explain", unknown)
    assert result.returncode == 1
    assert "eu-west does not run: what it decided is not here." in result.stdout
    assert "eu-west" not in command(run, "explain", f"req_{ID}").stdout.split("Ended")[1]
    said = command(run, "explain", unknown, "--json")
    assert (said.returncode, json.loads(said.stdout)) == (
        1,
        {"decisions": [], "unanswered": [], "not_running": ["eu-west"]},
    )


@pytest.mark.parametrize("word", [(), ("",), ("foo",), ("chatcmpl-",), ("a/b?c",), ("req_0abc",)])
def test_what_is_no_request_id_is_a_usage_error_that_says_what_one_looks_like(run, word):
    result = command(run, "explain", *word)
    assert result.returncode == 2
    assert "`req_` and 24 digits" in result.stderr
    assert ("REQUEST_ID" if not any(word) else f"'{word[0]}' is no request id") in result.stderr
    said = command(run, "explain", *word, "--json")
    assert (said.returncode, json.loads(said.stdout)["error"]["code"]) == (2, "usage")


def test_bytes_that_are_no_text_are_no_request_id(run):
    result = command(run, "explain", os.fsdecode(b"\xff\xfe\x1b[2J"))
    assert result.returncode == 2
    assert r"'\udcff\udcfe\x1b[2J' is no request id" in result.stderr
    assert "Traceback" not in result.stderr


def test_explain_names_a_region_that_does_not_answer(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        us_east = run.region("us-east")
        state_of(us_east, taken.getsockname()[1]).write(us_east.state)
        result = command(run, "explain", f"req_{ID}", "--json")
    assert result.returncode == 1
    assert [one["region"] for one in json.loads(result.stdout)["unanswered"]] == ["us-east"]


def test_explain_where_nothing_runs(run):
    assert command(run, "explain", f"req_{ID}").returncode == 3
    result = command(run, "explain", f"req_{ID}", "--json")
    assert (result.returncode, json.loads(result.stdout)["running"]) == (3, False)
