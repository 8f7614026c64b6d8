"""The thin parts around Ray Serve that need no Ray: the board, what status says."""

from dayzero.serving.board import Board, ReplicaReport
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


def test_a_replica_that_has_not_reported_has_no_figures():
    line = describe("r1", ReplicaReport({}, seen_s=0.0), in_flight=1, now_s=5.0)
    assert line == {"replica": "r1", "in_flight": 1, "health": "unknown", "doing": "has not reported yet"}
