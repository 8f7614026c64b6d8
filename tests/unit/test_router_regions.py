"""`choose`: home first, a clearly better peer, never one that is masked; total and deterministic."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.router.errors import NoReplicaError
from dayzero.router.load import OwnLoad, ReplicaId, Score
from dayzero.router.place import Placement
from dayzero.router.regions import PeerView, RegionRequest, SpillPolicy, Why, choose

POLICY = SpillPolicy(margin_s=0.2, margin_share=0.25, max_age_s=3.0)
NOW_S = 100.0
FULL = NoReplicaError("No replica can take the request now (2 full).")


def home(total_s, prefill_s=0.0):
    score = Score(ReplicaId("h1"), total_s - prefill_s, 0.0, 0.0, 0.0, prefill_s)
    return Placement((score,), (), "h1")


def peer(region="west", **fields):
    return PeerView(
        region, **({"at_s": NOW_S - 0.3, "round_trip_s": 0.07, "prefill_s_per_token": 0.001} | fields)
    )


def asked(prompt_tokens=1000, **fields):
    return RegionRequest("r1", "east", prompt_tokens, **fields)


def test_home_keeps_a_request_that_a_peer_would_serve_a_little_sooner():
    choice = choose(home(0.30, 0.2), None, [peer(wait_s=0.0, reusable_tokens=900)], asked(), POLICY, NOW_S)
    assert (choice.target, choice.why) == ("east", Why.HOME)
    assert [score.region for score in choice.scores] == ["west", "east"]


def test_a_clearly_better_peer_takes_it_with_the_whole_way_counted():
    choice = choose(home(3.0), None, [peer(wait_s=0.1)], asked(1000), POLICY, NOW_S)
    assert (choice.target, choice.why) == ("west", Why.FASTER)
    assert choice.predicted_s == pytest.approx(0.07 + 0.1 + 1.0)


@pytest.mark.parametrize(("home_s", "target"), [(1.55, "east"), (1.57, "west"), (0.40, "east")])
def test_both_margins_count(home_s, target):
    # The peer needs 1.17 s: a quarter of home's time less is reached at 1.56 s. At 0.4 s the peer is worse.
    choice = choose(home(home_s), None, [peer(wait_s=0.1)], asked(1000), POLICY, NOW_S)
    assert choice.target == target


def test_what_the_digest_says_is_reusable_is_not_prefilled_again():
    cold = peer("cold", wait_s=0.0)
    warm = peer("warm", wait_s=0.3, reusable_tokens=9_000)
    choice = choose(home(9.0), None, [cold, warm], asked(10_000), POLICY, NOW_S)
    assert choice.target == "warm"
    assert choice.predicted_s == pytest.approx(0.07 + 0.3 + 1.0)


def test_a_peer_prefills_with_its_own_coefficient():
    slow, fast = peer("slow", prefill_s_per_token=0.002), peer("fast", prefill_s_per_token=0.0005)
    choice = choose(None, None, [slow, fast], asked(4_000), POLICY, NOW_S)
    assert choice.target == "fast"
    assert choice.predicted_s == pytest.approx(0.07 + 2.0)


def test_what_was_sent_there_since_its_report_waits_there():
    busy = peer("busy", unreported=OwnLoad(3, 6_000), replicas=2)
    choice = choose(None, None, [busy], asked(0), POLICY, NOW_S)
    assert choice.predicted_s == pytest.approx(0.07 + 3.0)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"why_down": "down: no answer"}, "down"),
        ({"at_s": None}, "stale"),
        ({"at_s": NOW_S - 3.1}, "stale"),
        ({"serves": False}, "does not serve"),
        ({"full": True}, "full"),
    ],
)
def test_a_peer_that_cannot_serve_is_passed_over_with_the_reason(fields, word):
    choice = choose(home(50.0), None, [peer(**fields)], asked(), POLICY, NOW_S)
    assert choice.target == "east"
    ((skipped),) = choice.skipped
    assert word in skipped.why


STALE = NOW_S - 6.0


@pytest.mark.parametrize(("error", "why"), [(None, Why.NO_HOME), (FULL, Why.HOME_UNABLE)])
def test_where_nobody_else_can_serve_a_stale_peer_does_with_the_reason(error, why):
    """A gateway that stood still for longer than `max_age_s`: both regions live, and it has heard of neither."""
    peers = [peer("far", at_s=STALE, wait_s=5.0), peer("near", at_s=STALE), peer("dead", why_down="down")]
    choice = choose(None, error, peers, asked(), POLICY, NOW_S)
    assert (choice.target, choice.why) == ("near", why)
    assert "told of its load 6.0 s ago" in choice.reason
    assert [score.region for score in choice.scores] == ["near", "far"]
    assert {skip.region for skip in choice.skipped} == {"dead", "east"}


def test_a_stale_peer_comes_after_every_other_and_says_why():
    stale = peer("stale", at_s=STALE)
    choice = choose(None, None, [stale, peer("slow", wait_s=60.0)], asked(), POLICY, NOW_S)
    assert choice.target == "slow"
    assert ("stale", "stale") in {(skip.region, skip.why) for skip in choice.skipped}
    assert choose(home(99.0), None, [stale], asked(), POLICY, NOW_S).at_home


def test_of_stale_peers_those_that_were_full_come_last_but_are_asked():
    full, slow = peer("full", at_s=STALE, full=True), peer("slow", at_s=STALE, wait_s=9.0)
    assert choose(None, None, [full, slow], asked(), POLICY, NOW_S).target == "slow"
    assert choose(None, None, [full], asked(), POLICY, NOW_S).target == "full"
    assert choose(None, None, [peer(full=True)], asked(), POLICY, NOW_S).why is Why.NOBODY


def test_a_region_that_failed_this_request_or_is_forbidden_is_passed_over():
    tried = choose(None, FULL, [peer()], asked(tried=frozenset({"west"})), POLICY, NOW_S)
    assert (tried.target, tried.why) == (None, Why.NOBODY)
    assert FULL.message.rstrip(".") in tried.reason
    forbidden = choose(home(50.0), None, [peer()], asked(allowed=frozenset({"east"})), POLICY, NOW_S)
    assert forbidden.target == "east"


def test_home_is_left_where_the_tenants_data_may_not_be_processed_there():
    choice = choose(home(0.1), None, [peer()], asked(allowed=frozenset({"west"})), POLICY, NOW_S)
    assert (choice.target, choice.why) == ("west", Why.HOME_FORBIDDEN)
    nowhere = choose(home(0.1), None, [peer()], asked(allowed=frozenset({"north"})), POLICY, NOW_S)
    assert nowhere.target is None


def test_why_there_is_no_home_is_told_apart():
    assert choose(None, FULL, [peer()], asked(), POLICY, NOW_S).why is Why.HOME_UNABLE
    assert choose(None, None, [peer()], asked(), POLICY, NOW_S).why is Why.NO_HOME


def test_equal_peers_share_requests():
    peers = [peer("a"), peer("b")]
    targets = [
        choose(None, None, peers, RegionRequest(f"r{i}", "edge", 10), POLICY, NOW_S).target
        for i in range(200)
    ]
    assert 60 < targets.count("a") < 140


views = st.builds(
    PeerView,
    region=st.sampled_from(["a", "b", "c", "d", "home"]),
    why_down=st.none() | st.just("down"),
    at_s=st.none() | st.floats(90, 101),
    serves=st.booleans(),
    full=st.booleans(),
    replicas=st.integers(0, 5),
    round_trip_s=st.floats(0, 2),
    wait_s=st.floats(0, 20),
    prefill_s_per_token=st.floats(0, 0.01),
    reusable_tokens=st.integers(0, 200_000),
    unreported=st.builds(OwnLoad, st.integers(0, 9), st.integers(0, 100_000)),
)
regions = st.frozensets(st.sampled_from(["a", "b", "c", "d", "home"]))


@given(
    peers=st.lists(views, max_size=5, unique_by=lambda view: view.region),
    home_s=st.none() | st.floats(0, 60),
    error=st.sampled_from([None, FULL]),
    tokens=st.integers(0, 100_000),
    tried=regions,
    allowed=st.none() | regions,
    seed=st.integers(),
)
def test_it_is_total_deterministic_and_never_names_a_masked_region(
    *, peers, home_s, error, tokens, tried, allowed, seed
):
    here = None if home_s is None else home(home_s)
    request = RegionRequest("r", "home", tokens, tried=tried - {"home"}, allowed=allowed)
    choice = choose(here, None if here else error, peers, request, POLICY, NOW_S)
    shuffled = random.Random(seed).sample(peers, len(peers))
    assert choose(here, None if here else error, shuffled, request, POLICY, NOW_S) == choice

    by_name = {view.region: view for view in peers}
    up = {
        view.region
        for view in peers
        if view.region != "home"
        and view.region not in request.tried
        and (allowed is None or view.region in allowed)
        and view.why_down is None
        and view.serves
    }
    stale = {
        region
        for region in up
        if by_name[region].at_s is None or NOW_S - by_name[region].at_s > POLICY.max_age_s
    }
    home_able = here is not None and (allowed is None or "home" in allowed)
    able = {region for region in up - stale if not by_name[region].full}
    if not able and not home_able:
        able = stale
    assert {score.region for score in choice.scores} == able | ({"home"} if home_able else set())
    assert {skip.region for skip in choice.skipped} >= set(by_name) - able
    if choice.target is None:
        assert not able
        assert not home_able
    elif choice.at_home:
        assert home_able
    else:
        assert choice.target in able
        if home_able:
            assert choice.predicted_s < home_s - POLICY.margin_s
    assert choice.reason


def test_a_peer_that_only_failed_to_answer_in_time_is_asked_where_nobody_else_can_serve():
    slow = peer("slow", why_down="down: no answer within 0.5 s", silent=True)
    gone = peer("gone", why_down="down: connection refused")
    alone = choose(None, None, [slow, gone], asked(), POLICY, NOW_S)
    assert alone.target == "slow"
    assert "may only be slow" in alone.reason
    assert ("gone", "down: connection refused") in {(skip.region, skip.why) for skip in alone.skipped}
    assert choose(None, None, [slow, peer("well")], asked(), POLICY, NOW_S).target == "well"
    assert choose(None, None, [gone], asked(), POLICY, NOW_S).why is Why.NOBODY
