"""Metrics: absent before data, bounded whatever is sent, named with their unit, as the page says."""

import math
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from dayzero.frontend.events import FinishReason
from dayzero.router.regions import Why
from dayzero.telemetry import (
    AbortCause,
    CanaryOutcome,
    DropCause,
    ForwardOutcome,
    GatewayMetrics,
    RegionWhy,
    RejectionCause,
    ReplicaState,
    RetryCause,
    Route,
    TruncationCause,
)
from dayzero.telemetry.catalogue import LABELS, METRICS, Kind
from dayzero.telemetry.metrics import FeedFigures
from dayzero.telemetry.reference import metrics_page

UNITS = ("_seconds", "_tokens_total", "_requests", "_replicas", "_blocks", "_total", "_bytes", "_up")


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return GatewayMetrics(registry, models=["m"], pools=["p"], regions=["r"])


def samples(registry):
    """Every sample but the creation times: (name, labels) → value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(registry, name, **labels):
    return samples(registry).get((f"dayzero_gateway_{name}", tuple(sorted(labels.items()))))


def record_everything(metrics, text):
    metrics.degraded(text, text)
    metrics.request(text, model=text, status=200, finish=text, seconds=1)
    metrics.first_token(text, 1)
    metrics.inter_token(text, 1, 1)
    metrics.tokens(text, prompt=1, completion=1, cached=1)
    metrics.enter(text).leave()
    metrics.retried(text)
    metrics.truncated(text)
    metrics.aborted(text)
    metrics.rejected(text)
    metrics.canary(text, text)
    metrics.replicas(text, {text: 1})
    metrics.spans_dropped(text, 1)
    metrics.region_chosen(text, text)
    metrics.forwarded(text, text)
    metrics.peer(text, up=True, round_trip_s=0.07)
    metrics.without_affinity(text, 1)
    metrics.frontend_cache(text, held_bytes=1, bound_bytes=2)
    metrics.feed(
        text, FeedFigures(connected=True, lag_s=0.05, exact_replicas=1, void_replicas=1, blocks={text: 1})
    )


def test_a_lag_that_was_never_measured_stays_absent(registry, metrics):
    metrics.feed(
        "r", FeedFigures(connected=False, lag_s=None, exact_replicas=2, void_replicas=1, blocks={"m": 7})
    )
    assert value(registry, "feed_up", region="r") == 0
    assert value(registry, "followed_replicas", region="r", known="exact") == 2
    assert value(registry, "followed_replicas", region="r", known="void") == 1
    assert value(registry, "indexed_blocks", model="m") == 7
    assert not any("feed_lag" in name for name, _ in samples(registry))


def test_before_there_is_data_there_is_no_sample(registry, metrics):
    assert samples(registry) == {}
    metrics.retried(RetryCause.DRAINING)
    assert samples(registry) == {("dayzero_gateway_retries_total", (("cause", "draining"),)): 1}


def test_a_request_is_counted_with_what_happened_to_it(registry, metrics):
    metrics.request(Route.CHAT_COMPLETIONS, model="m", status=200, finish="stop", seconds=0.3)
    metrics.request(Route.CHAT_COMPLETIONS, model=None, status=404, finish=None, seconds=0.001)
    route = {"route": "chat_completions"}
    assert value(registry, "requests_total", model="m", status_class="2xx", finish="stop", **route) == 1
    assert value(registry, "requests_total", model="none", status_class="4xx", finish="none", **route) == 1
    assert value(registry, "request_seconds_sum", model="m", **route) == pytest.approx(0.3)
    assert value(registry, "request_seconds_bucket", model="m", le="0.25", **route) == 0
    assert value(registry, "request_seconds_bucket", model="m", le="0.5", **route) == 1


def test_an_oddity_is_counted_by_its_name_and_never_makes_a_name_of_its_own(registry):
    metrics = GatewayMetrics(registry, models=["m"], pools=[], oddities=["think_not_closed"])
    metrics.degraded("m", "think_not_closed")
    metrics.degraded("m", "what a model said")
    assert value(registry, "degraded_answers_total", model="m", oddity="think_not_closed") == 1
    assert value(registry, "degraded_answers_total", model="m", oddity="other") == 1


def test_tokens_and_times_are_added_up(registry, metrics):
    metrics.tokens("m", prompt=100, completion=7, cached=64)
    metrics.tokens("m", prompt=10, completion=1, cached=0)
    metrics.first_token("m", 0.12)
    metrics.inter_token("m", 0.04, 4)
    assert value(registry, "prompt_tokens_total", model="m") == 110
    assert value(registry, "completion_tokens_total", model="m") == 8
    assert value(registry, "cached_tokens_total", model="m") == 64
    assert value(registry, "first_token_seconds_count", model="m") == 1
    assert value(registry, "inter_token_seconds_sum", model="m") == pytest.approx(0.01)


def test_in_flight_returns_to_zero_however_often_its_guards_leave(registry, metrics):
    guards = [metrics.enter("m") for _ in range(3)]
    assert value(registry, "in_flight_requests", model="m") == 3
    for guard in guards * 3:
        guard.leave()
    assert value(registry, "in_flight_requests", model="m") == 0


def test_replicas_are_counted_by_state_and_a_state_left_out_has_none(registry, metrics):
    metrics.replicas("p", {ReplicaState.HEALTHY: 2})
    metrics.replicas("p", {ReplicaState.HEALTHY: 1, ReplicaState.UNHEALTHY: 1})
    metrics.replicas("p", {ReplicaState.HEALTHY: 1})
    states = {state: value(registry, "replicas", pool="p", state=state) for state in ReplicaState}
    assert states == {"healthy": 1, "starting": 0, "draining": 0, "unhealthy": 0, "other": None}


@given(st.lists(st.text(), max_size=20))
def test_nothing_that_is_sent_makes_a_series_of_its_own(texts):
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, models=["m"], pools=["p"])
    record_everything(metrics, "canary-secret")
    series = set(samples(registry))
    for text in texts:
        record_everything(metrics, f"unknown {text}")
    assert set(samples(registry)) == series
    assert b"canary-secret" not in generate_latest(registry)


def test_every_cause_of_ours_keeps_its_name(registry, metrics):
    for cause in RetryCause:
        metrics.retried(cause)
    for cause in TruncationCause:
        metrics.truncated(cause)
    for cause in AbortCause:
        metrics.aborted(cause)
    for cause in RejectionCause:
        metrics.rejected(cause)
    for cause in DropCause:
        metrics.spans_dropped(cause, 1)
    for outcome in CanaryOutcome:
        metrics.canary("p", outcome)
    for why in RegionWhy:
        metrics.region_chosen("r", why)
    for outcome in ForwardOutcome:
        metrics.forwarded("r", outcome)
    for route in Route:
        metrics.request(route, model="m", status=200, finish=None, seconds=1)
    assert set(samples(registry).values()) == {0, 1}
    counted = [key for key, count in samples(registry).items() if count == 1 and key[0].endswith("_total")]
    kinds = (RetryCause, TruncationCause, AbortCause, RejectionCause, DropCause, CanaryOutcome, Route)
    kinds += (RegionWhy, ForwardOutcome)
    assert len(counted) == sum(len(kind) for kind in kinds)


def test_a_round_trip_that_was_never_measured_is_absent(registry, metrics):
    metrics.peer("r", up=False, round_trip_s=None)
    assert value(registry, "peer_up", region="r") == 0
    assert value(registry, "peer_round_trip_seconds", region="r") is None


def test_the_words_between_regions_are_those_of_the_router_and_of_the_dispatch():
    assert {str(why) for why in RegionWhy} == {str(why) for why in Why} - {Why.NOBODY}


def test_every_finish_of_the_event_stream_is_a_value():
    assert set(LABELS["finish"]) == set(FinishReason)


def test_the_number_of_series_has_a_bound():
    names = {"model": 10, "pool": 20, "region": 10, "oddity": 50}
    series = 0
    for metric in METRICS:
        combinations = math.prod(len(LABELS[label] or ()) or names[label] for label in metric.labels)
        series += combinations * (len(metric.buckets) + 3 if metric.buckets else 1)
    assert series < 5000


def test_names_end_in_their_unit_and_labels_are_allowed():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("dayzero_gateway_")
        assert metric.name.endswith(UNITS)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.labels, "a metric without a label is zero before it has data"
        assert set(metric.labels) <= set(LABELS)
        assert set(metric.labels) & {"tenant", "request", "request_id", "replica", "key"} == set()
        assert bool(metric.buckets) == bool(metric.why_buckets) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_reference_page_is_what_the_catalogue_says():
    assert pathlib.Path("docs/reference/metrics.md").read_text() == metrics_page(), (
        "run: python -m dayzero.telemetry.reference metrics > docs/reference/metrics.md"
    )
