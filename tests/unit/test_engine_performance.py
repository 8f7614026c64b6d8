"""The performance model against what is published of Kimi K3 on GB300, with the tolerance of each claim."""

import json
from pathlib import Path

import pytest

from dayzero.engine.errors import EngineStartError
from dayzero.engine.performance import StepLoad, StepModel
from dayzero.engine.simulated_profile import load_profile, profile_names

K3 = load_profile("kimi-k3-gb300-tp8")
GPUS = 8
ESTIMATES = Path(__file__).parents[2].parent / "shared" / "data" / "kimi-k3" / "performance.json"

# Published: total tokens/s/GPU at tokens/s/user, 8K in and 1K out.
PARETO = [
    (2190, 16),
    (1990, 20),
    (1840, 26),
    (1560, 30),
    (1310, 34),
    (1030, 41),
    (660, 47),
    (340, 65),
    (200, 76),
]


def user_tokens_per_s(users):
    """Steady state: in each step every user decodes one token and, on average, eight prompt tokens are prefilled."""
    load = StepLoad(
        prefill_tokens=round(8 * users),
        prefill_context_tokens=round(8 * users * 4096),
        decode_sequences=round(users),
        decode_context_tokens=round(users * (8192 + 512)),
    )
    return 1 / K3.step.seconds(load)


def test_batch_1_decodes_at_the_published_111_tokens_a_second():
    assert 1 / K3.step.decode_step_s(1, 1024) == pytest.approx(111, rel=0.01)


@pytest.mark.parametrize(("total", "per_user"), PARETO)
def test_the_pareto_frontier_is_met_within_5_percent(total, per_user):
    users = total * GPUS / 9 / per_user
    assert user_tokens_per_s(users) == pytest.approx(per_user, rel=0.05)


def test_the_fastest_pareto_point_is_not_of_this_layout():
    """60 tokens/s/GPU at 106/user is half a user per 8 GPUs: TP16 at batch 1. Ours is 12 % slower there."""
    assert 60 * GPUS / 9 / 106 < 1
    assert user_tokens_per_s(1) == pytest.approx(106, rel=0.12)


def test_64_users_on_16_gpus_get_a_token_each_34_ms_as_published():
    """TRT-LLM DEP16; we are within 20 %: the layout is another."""
    assert 1 / user_tokens_per_s(32) == pytest.approx(0.034, rel=0.20)


def estimates():
    if not ESTIMATES.exists():
        pytest.skip("the estimates are not beside this repository")
    return json.loads(ESTIMATES.read_text())["rows"]


@pytest.mark.parametrize(
    ("prompt", "tolerance"),
    # The estimate's fixed 0.18 s is left out, so short prompts come out fast: 18 % at 8,192.
    [(8192, 0.20), (16384, 0.10), (32768, 0.10), (65536, 0.10), (131072, 0.10), (262144, 0.10)],
)
def test_prefill_has_the_shape_of_the_estimates_scaled_by_2_8(prompt, tolerance):
    (row,) = [row for row in estimates() if row["isl"] == prompt and row["bs"] == 1]
    expected_s = row["ttft_ms"] / 1000 / 2.8
    ours_s = K3.step.prefill_s(prompt, batched_tokens=K3.limits.batched_tokens)
    assert ours_s == pytest.approx(expected_s, rel=tolerance)


def test_the_speed_of_light_is_respected_but_for_large_decode_batches():
    """Prefill of 8,192 and more is never faster. Decode is up to 30 % faster than TP8 could be at batch 64: the
    frontier's points there were measured with data-parallel attention, which reads no KV eight times.
    """
    for row in estimates():
        if row["isl"] < 8192:
            continue
        if row["bs"] == 1:
            prefill_s = K3.step.prefill_s(row["isl"], batched_tokens=8192)
            assert prefill_s >= row["ttft_sol_ms"] / 1000
        decode_s = K3.step.decode_step_s(row["bs"], row["isl"])
        least = 1.0 if row["bs"] <= 8 else 0.7
        assert decode_s >= least * row["decode_step_sol_ms"] / 1000


def test_a_hit_saves_its_share_of_the_prefill():
    whole_s = K3.step.prefill_s(131072, batched_tokens=8192)
    rest_s = K3.step.prefill_s(131072, cached_tokens=122880, batched_tokens=8192)
    assert rest_s < whole_s / 10
    assert K3.step.prefill_s(100, cached_tokens=100, batched_tokens=8192) == 0


def test_time_grows_with_every_part_of_a_step():
    loads = [
        StepLoad(decode_sequences=1, decode_context_tokens=1000),
        StepLoad(decode_sequences=1, decode_context_tokens=100_000),
        StepLoad(decode_sequences=2, decode_context_tokens=100_000),
        StepLoad(100, 5_050, 2, 100_000),
        StepLoad(100, 500_000_000, 2, 100_000),
    ]
    times = [K3.step.seconds(load) for load in loads]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_an_instant_profile_takes_no_time():
    assert load_profile("instant").step == StepModel()
    assert StepModel().seconds(StepLoad(8192, 8192**2, 64, 10**6)) == 0


def test_an_empty_step_takes_no_time():
    assert K3.step.seconds(StepLoad()) == 0


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_can_hold_its_longest_request(name):
    profile = load_profile(name)
    assert profile.cache.blocks_for_one(profile.limits.max_model_tokens) < profile.cache.blocks


def test_an_unknown_profile_is_refused_with_the_known_ones():
    with pytest.raises(EngineStartError, match="kimi-k3-gb300-tp8"):
        load_profile("gb999")
