"""The thin parts around Ray Serve that need no Ray: the board, what status says."""

import hashlib

from dayzero.config import Frontend
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED, VARIABLE
from dayzero.serving.board import Board, ReplicaReport
from dayzero.serving.frontends import vocabulary_digest
from dayzero.serving.replica_status import describe, doing

IDLE = {
    "running": 0,
    "waiting": 0,
    "running_prompt_tokens": 0,
    "kv_usage": 0.0,
    "prompt_tokens_total": 0,
    "cached_tokens_total": 0,
    "generated_tokens_total": 0,
    "requests_total": 0,
    "resident_blocks": {},
}


def test_a_boards_report_keeps_its_age_until_it_changes():
    board = Board()
    assert board.reports() == {}
    board.post({"a": ReplicaReport({"n": 1}, seen_s=1.0)})
    board.post({"a": ReplicaReport({"n": 1}, seen_s=2.0), "b": ReplicaReport({}, seen_s=2.0)})
    assert board.reports()["a"].seen_s == 1.0
    board.post({"a": ReplicaReport({"n": 2}, seen_s=3.0)})
    assert board.reports()["a"].seen_s == 3.0
    assert set(board.reports()) == {"a"}


def test_what_a_replica_is_doing_is_said_in_words():
    assert doing(IDLE) == "idle"
    busy = IDLE | {"running": 3, "waiting": 2, "running_prompt_tokens": 1500}
    assert doing(busy) == "prefilling 1,500 tokens, generating 3, 2 waiting"


def test_a_replica_with_another_vocabulary_is_shown_as_what_it_is():
    said = {
        "stats": IDLE,
        "info": {"engine": "sim", "engine_version": "1", "incarnation": "1"},
        "health": {"ok": True, "reason": ""},
        "started_s": 0.0,
        "reported_s": 0.0,
    }
    told = describe("r1", ReplicaReport(said, seen_s=0.0), in_flight=0, now_s=1.0, stranger=True)
    assert "its vocabulary is not the gateway's" in told["health"]
    assert describe("r1", ReplicaReport(said, seen_s=0.0), in_flight=0, now_s=1.0)["health"] == "ok"


def test_what_digest_a_model_has_is_that_of_the_file_its_tokens_come_from(tmp_path, caplog, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    k3, template = Frontend(kind="kimi_k3"), Frontend()
    assert vocabulary_digest(k3, None) == hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    assert caplog.records == []
    named = tmp_path / "own.model"
    named.write_bytes(b"own")
    k3 = Frontend(kind="kimi_k3", options={"vocabulary": str(named)})
    assert vocabulary_digest(k3, None) == hashlib.sha256(b"own").hexdigest()
    assert vocabulary_digest(template, tmp_path) == ""
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    assert vocabulary_digest(template, tmp_path) == hashlib.sha256(b"{}").hexdigest()


def test_a_replica_that_has_not_reported_has_no_figures():
    line = describe("r1", ReplicaReport({}, seen_s=0.0), in_flight=1, now_s=5.0)
    assert line == {"replica": "r1", "in_flight": 1, "health": "unknown", "doing": "has not reported yet"}
