"""What the real engine's account says of requests, without vLLM."""

from dayzero.serving.engines.vllm_stats import Tally


def test_the_backlog_counts_what_is_expected_to_be_uncached_until_the_first_token():
    tally = Tally()
    hit = tally.begin("hit", 20_000, 500)
    miss = tally.begin("miss", 3_000, 3_000)
    assert tally.stats({}).running_prompt_tokens == 3_500
    tally.delivered(hit, 1, 19_500)
    assert tally.stats({}).running_prompt_tokens == 3_000
    tally.delivered(miss, 1, 0)
    stats = tally.stats({})
    assert (stats.running_prompt_tokens, stats.prompt_tokens_total, stats.cached_tokens_total) == (
        0,
        23_000,
        19_500,
    )
