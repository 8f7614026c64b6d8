"""Records of decisions: complete, bounded, and without anything that is not ours to keep."""

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.types import TokenDelta, Usage
from dayzero.gateway.decisions import KEPT_S, MOST_LISTED, Decision, DecisionLog, spellings
from dayzero.gateway.hits import WINDOW_S, Hits, Outcome
from dayzero.gateway.lifetime import Outcome as Ended
from dayzero.gateway.lifetime import Settlement
from dayzero.gateway.meter import Meter
from dayzero.gateway.retry import Verdict
from dayzero.gateway.trail import Attempted, Trail
from dayzero.router import Candidate, NoReplicaError, Placement, PlaceRequest, ReplicaId, View, place
from dayzero.router.feed.decisions import TTL_S
from dayzero.router.regions import RegionChoice, RegionScore, SkippedRegion, Why


def placed(*cached, prompt_tokens=1000, draining=0):
    candidates = [
        Candidate(ReplicaId(f"r{i}"), slots=8, max_requests=64, reusable_tokens=tokens)
        for i, tokens in enumerate(cached)
    ]
    candidates += [
        Candidate(ReplicaId(f"d{i}"), slots=8, max_requests=64, draining=True) for i in range(draining)
    ]
    return place(PlaceRequest("q", prompt_tokens), View(tuple(candidates)), 0.0)


def settled(trail, request_id="req_1", **fields):
    if trail is not None:
        trail.request_id = request_id
    usual = {
        "request_id": request_id,
        "route": "/v1/chat/completions",
        "model": "m",
        "stream": True,
        "outcome": Ended.OK,
        "status": 200,
        "error_code": None,
        "finish": "stop",
        "prompt_tokens": 990,
        "completion_tokens": 7,
        "cached_tokens": 0,
        "attempts": 1,
        "first_token_s": 0.5,
        "total_s": 2.0,
        "truncated": False,
        "stopped": False,
        "tenant": "acme",
        "trail": trail,
    }
    return Settlement(**(usual | fields))


def answered(placement, replica="r0", cached=640, first_token_s=0.25, prompt_tokens=1000):
    attempt = Attempted(1, placement, replica, first_token_s, cached)
    return Trail("req_1", prompt_tokens, [attempt])


class Store:
    """A sink in memory."""

    def __init__(self):
        self.kept = {}

    def keep(self, request_id, record):
        self.kept[request_id] = record

    async def find(self, request_id):
        return self.kept.get(request_id)


async def test_a_record_names_what_was_mended():
    log = DecisionLog("us-east", wall=lambda: 1002.0)
    log.settled(settled(answered(placed(768, 0)), degraded=("think_not_closed", "call_cut")))
    record = msgspec.json.decode(await log.find("req_1"), type=Decision)
    assert record.degraded == ("think_not_closed", "call_cut")


async def test_a_record_has_what_was_predicted_and_what_came():
    log = DecisionLog("us-east", wall=lambda: 1002.0)
    log.settled(settled(answered(placed(768, 0, draining=1))))
    record = msgspec.json.decode(await log.find("req_1"), type=Decision)
    assert (record.region, record.model, record.tenant, record.prompt_tokens) == (
        "us-east",
        "m",
        "acme",
        1000,
    )
    assert (record.at_s, record.total_s, record.outcome, record.finish) == (1000.0, 2.0, "ok", "stop")
    (attempt,) = record.attempts
    assert [c.replica for c in attempt.candidates] == ["r0", "r1"]
    assert [c.reusable_tokens for c in attempt.candidates] == [768, 0]
    for candidate in attempt.candidates:
        assert sum(candidate.parts.values()) == pytest.approx(candidate.total_s)
        assert set(candidate.parts) == {"fixed_s", "queue_s", "slot_s", "decode_s", "prefill_s"}
    assert [(s.replica, s.why) for s in attempt.skipped] == [("d0", "draining")]
    assert attempt.predicted_s == attempt.candidates[0].total_s
    assert (attempt.predicted_cached_tokens, attempt.cached_tokens) == (768, 640)
    assert (attempt.replica, attempt.first_token_s) == ("r0", 0.25)
    assert "r0: first token in" in attempt.reason


async def test_the_prediction_is_that_of_the_replica_that_took_the_request():
    log = DecisionLog("us-east")
    log.settled(settled(answered(placed(768, 128), replica="r1")))
    (attempt,) = json.loads(await log.find("req_1"))["attempts"]
    assert attempt["predicted_cached_tokens"] == 128
    assert attempt["predicted_s"] == attempt["candidates"][1]["total_s"]


async def test_what_nobody_knew_is_absent():
    log = DecisionLog("us-east")
    trail = Trail("req_1", 1000, [Attempted(1, placed(None))])
    log.settled(settled(trail))
    (attempt,) = json.loads(await log.find("req_1"))["attempts"]
    for name in ("predicted_cached_tokens", "cached_tokens", "first_token_s", "replica", "error"):
        assert name not in attempt
    assert attempt["candidates"][0]["reusable_tokens"] is None


async def test_every_attempt_is_recorded_with_what_was_decided_about_another():
    dead = EngineDeadError("The replica is gone.")
    first = Attempted(
        1, placed(0, 0), "r0", error=dead, verdict=Verdict(retry=True, reason="EngineDeadError")
    )
    nobody = Attempted(
        2, error=NoReplicaError("No replica can take the request now (1 failed this request).")
    )
    log = DecisionLog("us-east")
    log.settled(
        settled(Trail("req_1", 1000, [first, nobody]), outcome=Ended.ERROR, status=503, error_code="x")
    )
    record = json.loads(await log.find("req_1"))
    one, two = record["attempts"]
    assert (one["error"], one["retried"], one["retry_reason"]) == ("engine_dead", True, "EngineDeadError")
    assert (two["number"], two["error"], two["candidates"]) == (2, "no_replica_available", [])
    assert two["reason"] == "No replica can take the request now (1 failed this request)."
    assert (record["outcome"], record["status"], record["error"]) == ("error", 503, "x")


async def test_a_request_that_was_never_placed_leaves_no_record():
    log = DecisionLog("us-east")
    log.settled(settled(None))
    log.settled(settled(Trail("req_1", 10)))
    assert (len(log), log.held_bytes, await log.find("req_1")) == (0, 0, None)


async def test_a_choice_of_region_is_recorded_and_its_seconds_are_the_prediction():
    there = RegionScore("eu-west", round_trip_s=0.1, wait_s=0.2, prefill_s=0.5)
    skipped = SkippedRegion("us-east", "full")
    choice = RegionChoice("us-east", "eu-west", Why.HOME_UNABLE, (there,), (skipped,), "home is full")
    placement = Placement((), (), "to eu-west", choice, choice.predicted_s)
    log = DecisionLog("us-east")
    log.settled(settled(Trail("req_1", 1000, [Attempted(1, placement, "eu-west")])))
    (attempt,) = json.loads(await log.find("req_1"))["attempts"]
    assert attempt["choice"] == {
        "home": "us-east",
        "target": "eu-west",
        "why": "home_unable",
        "scores": [
            {"region": "eu-west", "round_trip_s": 0.1, "wait_s": 0.2, "prefill_s": 0.5, "total_s": 0.8}
        ],
        "skipped": [{"region": "us-east", "why": "full"}],
        "reason": "home is full",
        "avoid": [],
    }
    assert (attempt["predicted_s"], attempt["candidates"]) == (0.8, [])


def test_a_record_is_kept_as_long_as_the_answer_to_an_unknown_id_says():
    assert KEPT_S == TTL_S


async def test_a_record_lists_the_best_and_counts_the_others():
    log = DecisionLog("us-east")
    log.settled(settled(answered(placed(*range(0, 1000, 10), draining=30))))
    record = await log.find("req_1")
    (attempt,) = json.loads(record)["attempts"]
    assert (len(attempt["candidates"]), attempt["candidates_total"]) == (MOST_LISTED, 100)
    assert (len(attempt["skipped"]), attempt["skipped_total"]) == (MOST_LISTED, 30)
    assert attempt["candidates"][0]["reusable_tokens"] == 990
    assert len(record) < 8000


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 8), st.integers(1, 6000))
def test_the_log_holds_the_last_records_within_its_bounds(ids, most_records, most_bytes):
    log = DecisionLog("us-east", most_records=most_records, most_bytes=most_bytes, wall=lambda: 0.0)
    trail = answered(placed(5))
    for number in ids:
        log.settled(settled(trail, request_id=f"req_{number:03}"))
        assert len(log) <= most_records
        assert log.held_bytes <= most_bytes
        assert log.held_bytes == sum(map(len, log._records.values()))
    latest = list(dict.fromkeys(reversed(ids)))[: len(log)]
    assert sorted(log._records) == sorted(f"req_{number:03}" for number in latest)


async def test_what_this_process_forgot_the_store_still_has():
    store = Store()
    log = DecisionLog("us-east", store, most_records=1)
    for name in ("req_a", "req_b"):
        log.settled(settled(answered(placed(5)), request_id=name))
    assert len(log) == 1
    assert json.loads(await log.find("req_a"))["request_id"] == "req_a"
    assert json.loads(await DecisionLog("us-east", store).find("chatcmpl-b"))["request_id"] == "req_b"
    assert await log.find("req_c") is None


@pytest.mark.parametrize("asked", ["req_0abc", "0abc", "chatcmpl-0abc"])
async def test_an_id_is_found_however_it_is_spelled(asked):
    log = DecisionLog("us-east")
    log.settled(settled(answered(placed(5)), request_id="req_0abc"))
    assert json.loads(await log.find(asked))["request_id"] == "req_0abc"


def test_an_id_that_an_edge_made_is_found_too():
    assert "edge-7" in spellings("chatcmpl-edge-7")
    assert spellings("req_1") == ("req_1", "1")


def test_a_record_costs_less_than_a_tenth_of_a_millisecond():
    log = DecisionLog("us-east", Store())
    settlement = settled(answered(placed(*range(100))))
    best_s = float("inf")
    for _ in range(20):
        started_s = time.perf_counter()
        for _ in range(20):
            log.settled(settlement)
        best_s = min(best_s, (time.perf_counter() - started_s) / 20)
    assert best_s < 100e-6


def test_notes_of_deltas_keep_the_first_token_s_time_and_the_engine_s_report():
    attempt = Attempted(1)
    attempt.note(TokenDelta(usage=Usage(10, 0, 4)), 0.1)
    assert (attempt.first_token_s, attempt.cached_tokens) == (None, 4)
    attempt.note(TokenDelta(token_ids=(1,)), 0.2)
    attempt.note(TokenDelta(token_ids=(2,), usage=Usage(10, 2, 4)), 0.3)
    assert (attempt.first_token_s, attempt.cached_tokens) == (0.2, 4)


# Hit rate and phantom rate

outcomes = st.builds(Outcome, st.integers(1, 10**6), st.integers(0, 10**6), st.none() | st.integers(0, 10**6))


@given(st.lists(st.tuples(outcomes, st.floats(0, 1000)), max_size=20))
def test_totals_add_up_and_rates_are_shares(history):
    hits, now_s = Hits(), 0.0
    for outcome, later_s in history:
        now_s += later_s
        hits = hits.with_outcome(outcome, now_s)
    told = [o for o, _ in history if o.predicted_tokens is not None]
    total = hits.total
    assert total.predicted_tokens - total.phantom_tokens == total.cached_of_predicted - total.missed_tokens
    assert total.prompt_tokens == sum(o.prompt_tokens for o, _ in history)
    assert total.predictions == len(told)
    said = hits.describe(now_s)
    for name in ("phantom_rate", "missed_rate"):
        assert 0 <= said.get(name, 0) <= 1
    assert ("phantom_tokens_total" in said) == bool(told)


def test_rates_of_the_recent_past():
    hits = Hits()
    hits = hits.with_outcome(Outcome(1000, 0, 0), 0.0)
    hits = hits.with_outcome(Outcome(1000, 600, 800), WINDOW_S)
    said = hits.describe(WINDOW_S)
    assert said["hit_rate"] == 0.4  # 600 of 1,000 and half of 1,000
    assert said["phantom_rate"] == 0.25
    assert said["missed_rate"] == 0
    assert said["cached_tokens_total"] == 600


def test_without_data_rates_are_absent():
    assert Hits().describe(5.0) == {"window_s": WINDOW_S}
    unpredicted = Hits().with_outcome(Outcome(100, 50, None), 0.0).describe(0.0)
    assert unpredicted == {
        "window_s": WINDOW_S,
        "hit_rate": 0.5,
        "prompt_tokens_total": 100,
        "cached_tokens_total": 50,
    }
    long_ago = Hits().with_outcome(Outcome(100, 50, 50), 0.0).describe(100 * WINDOW_S)
    assert "hit_rate" not in long_ago
    assert long_ago["cached_tokens_total"] == 50


def lines_of(meter):
    """The samples of cached tokens, by name."""
    text = meter.text().decode()
    return {
        line.split("{")[0].removeprefix("dayzero_gateway_"): float(line.split()[-1])
        for line in text.splitlines()
        if "cached_tokens_total{" in line
    }


def test_metrics_compare_predicted_and_reported_and_are_absent_without_a_prediction():
    meter = Meter(models=["m"], pools=[])
    meter.settled(settled(answered(placed(None)), cached_tokens=640))
    assert lines_of(meter) == {"cached_tokens_total": 640}
    meter.settled(settled(Trail("req_1", 1000, [Attempted(1, placed(768), "r0")]), first_token_s=None))
    assert lines_of(meter) == {"cached_tokens_total": 640}, "the engine never reported"
    meter.settled(settled(answered(placed(768)), cached_tokens=640))
    meter.settled(settled(answered(placed(512)), cached_tokens=640))
    assert lines_of(meter) == {
        "cached_tokens_total": 3 * 640,
        "predicted_cached_tokens_total": 768 + 512,
        "phantom_cached_tokens_total": 128,
        "missed_cached_tokens_total": 128,
    }
