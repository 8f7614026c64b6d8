"""G1 to G5: what is delivered, how it ends, what is counted, and that it is repeatable."""

import asyncio

from dayzero.engine.conformance.bench import Bench
from dayzero.engine.conformance.registry import check
from dayzero.engine.types import Finish


@check("G1")
async def joined_deltas_are_the_output(bench: Bench) -> None:
    """`generate` yields deltas whose ids, joined, are the whole output, in order, each id once."""
    prompt = bench.short_prompt()
    longer = await bench.run(bench.request(prompt, max_tokens=16))
    shorter = await bench.run(bench.request(prompt, max_tokens=9))
    assert len(longer.ids) == 16, f"16 ids were asked for and {len(longer.ids)} delivered"
    assert shorter.ids == longer.ids[:9], (
        "a shorter run of the same request is not a prefix of the longer one"
    )
    empty = [i for i, delta in enumerate(longer.deltas[:-1]) if not delta.token_ids]
    assert not empty, f"deltas {empty} before the last carry no ids"


@check("G1")
async def logprobs_stand_beside_their_ids(bench: Bench) -> None:
    """Logprobs that were asked for are one per id, of that id, and none otherwise."""
    prompt = bench.short_prompt()
    asked = await bench.run(bench.request(prompt, max_tokens=6, logprobs=2))
    for delta in asked.deltas:
        found = tuple(entry.token_id for entry in delta.logprobs or ())
        assert found == delta.token_ids, "a delta's logprobs are not those of its ids"
    assert all(entry.logprob <= 0 for entry in asked.logprobs), "a log probability is above zero"
    assert all(len(entry.top) == 2 for entry in asked.logprobs), "two alternatives were asked for"
    sampled_alone = await bench.run(bench.request(prompt, max_tokens=3, logprobs=0))
    assert [entry.top for entry in sampled_alone.logprobs] == [(), (), ()], (
        "0 asks for the sampled id's logprob alone"
    )
    silent = await bench.run(bench.request(prompt, max_tokens=2))
    assert not silent.logprobs, "logprobs came unasked"


@check("G2")
async def one_finish_and_it_is_last(bench: Bench) -> None:
    """Exactly one delta has `finish`; it is the last, and carries `usage` and `times`; the first has usage too."""
    outcome = await bench.run(bench.request(bench.short_prompt(), max_tokens=8))
    assert len(outcome.finishes) == 1, f"{len(outcome.finishes)} deltas have a finish"
    assert outcome.deltas[-1].finish is not None, "the last delta has no finish"
    assert outcome.deltas[0].usage is not None, "the first delta has no usage"
    assert outcome.usage.prompt_tokens > 0
    times = outcome.times
    assert times.total_s is None or times.total_s >= (times.first_token_s or 0) >= 0, (
        "times run backwards: the whole is shorter than the first token"
    )


@check("G3")
async def usage_counts_prompt_and_output(bench: Bench) -> None:
    """`usage.prompt_tokens` is the prompt's length; `completion_tokens` counts every id delivered."""
    prompt = bench.cacheable_prompt()
    for max_tokens in (1, 7):
        outcome = await bench.run(bench.request(prompt, max_tokens=max_tokens))
        assert outcome.usage.prompt_tokens == len(prompt), (
            f"usage says {outcome.usage.prompt_tokens} prompt tokens, the prompt has {len(prompt)}"
        )
        assert outcome.usage.completion_tokens == len(outcome.ids), (
            f"usage says {outcome.usage.completion_tokens} completion tokens, {len(outcome.ids)} were delivered"
        )


@check("G4")
async def a_stop_id_is_delivered_last(bench: Bench) -> None:
    """A generated stop id is delivered as the last id, with finish STOP."""
    prompt = bench.short_prompt()
    free = await bench.run(bench.request(prompt, max_tokens=16))
    stop = free.ids[5]
    cut = free.ids.index(stop) + 1
    stopped = await bench.run(bench.request(prompt, max_tokens=16, stop_token_ids=(stop,)))
    assert stopped.finish is Finish.STOP, f"the finish at a stop id is {stopped.finish.value}"
    assert stopped.ids == free.ids[:cut], "the output does not end with the first stop id"
    assert stopped.usage.completion_tokens == cut, "the stop id is not counted"


@check("G4")
async def the_limit_ends_with_length(bench: Bench) -> None:
    """At `max_tokens` the finish is LENGTH."""
    for max_tokens in (1, 8):
        outcome = await bench.run(bench.request(bench.short_prompt(), max_tokens=max_tokens))
        assert outcome.finish is Finish.LENGTH, f"the finish at the limit is {outcome.finish.value}"
        assert len(outcome.ids) == max_tokens, f"{len(outcome.ids)} ids delivered, limit {max_tokens}"


@check("G4")
async def min_tokens_holds_the_stop_back(bench: Bench) -> None:
    """No stop id ends the output before `min_tokens`."""
    prompt = bench.short_prompt()
    free = await bench.run(bench.request(prompt, max_tokens=8))
    held = await bench.run(
        bench.request(prompt, max_tokens=12, min_tokens=9, stop_token_ids=(free.ids[2],), ignore_eos=False)
    )
    assert len(held.ids) >= 9, f"ended after {len(held.ids)} ids, min_tokens was 9"


@check("G5")
async def the_same_request_gives_the_same_ids(bench: Bench) -> None:
    """The same prompt, temperature 0 and a fixed seed give the same ids on the same engine."""
    prompt, other = bench.short_prompt(), bench.short_prompt()
    first = await bench.run(bench.request(prompt, max_tokens=12))
    for _ in range(2):
        again = await bench.run(bench.request(prompt, max_tokens=12))
        assert again.ids == first.ids, "two runs of one request differ"
    beside, _ = await asyncio.gather(
        bench.run(bench.request(prompt, max_tokens=12)), bench.run(bench.request(other, max_tokens=12))
    )
    assert beside.ids[:1] == first.ids[:1], "a neighbour changed the first id"
