"""What a simulated engine says: repeatable, bounded, and the same wherever it goes on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.simulated_output import OutputVoice, SimulatedOutput
from dayzero.engine.types import EngineRequest, Finish, Sampling, pack_ids

VOICE = OutputVoice.of(range(100, 400), stop_id=7, output_tokens=(5, 40))
prompts = st.lists(st.integers(0, 160_000), min_size=1, max_size=30)


def output(prompt, *, voice=VOICE, room=10_000, continuation=0, **sampling):
    request = EngineRequest(
        request_id="r",
        prompt_ids=pack_ids(prompt),
        sampling=Sampling(**({"max_tokens": 1000} | sampling)),
        continuation_tokens=continuation,
    )
    return SimulatedOutput(voice, request, room)


def ids_of(out):
    ids = []
    while out.finish is None:
        ids.append(out.next())
    return ids


@given(prompts)
def test_an_answer_ends_with_the_stop_id_within_its_range(prompt):
    out = output(prompt)
    ids = ids_of(out)
    assert out.finish is Finish.STOP
    assert ids[-1] == 7
    assert 5 <= len(ids) <= 40
    assert set(ids[:-1]) <= set(VOICE.text_ids)


@given(prompts, st.integers(0, 3))
def test_the_same_request_says_the_same(prompt, seed):
    first = ids_of(output(prompt, seed=seed))
    assert first == ids_of(output(prompt, seed=seed))


def test_the_seed_matters_only_above_temperature_0():
    prompt = [1, 2, 3]
    assert ids_of(output(prompt, seed=1)) != ids_of(output(prompt, seed=2))
    cold = [ids_of(output(prompt, temperature=0, seed=seed)) for seed in (1, 2)]
    assert cold[0] == cold[1]


@given(prompts, st.integers(1, 60))
def test_max_tokens_cuts_the_answer(prompt, limit):
    whole = ids_of(output(prompt))
    out = output(prompt, max_tokens=limit)
    assert ids_of(out) == whole[:limit]
    assert out.finish is (Finish.STOP if len(whole) <= limit else Finish.LENGTH)


@given(prompts, st.integers(1, 200))
def test_ignoring_the_end_goes_on_to_the_limit(prompt, limit):
    out = output(prompt, ignore_eos=True, max_tokens=limit)
    ids = ids_of(out)
    assert len(ids) == limit
    assert 7 not in ids


@given(prompts, st.integers(1, 80))
def test_no_answer_is_shorter_than_min_tokens(prompt, least):
    assert len(ids_of(output(prompt, min_tokens=least))) >= least


@given(prompts, st.integers(0, 4))
def test_a_continued_answer_goes_on_as_if_nothing_had_happened(prompt, cut):
    whole = ids_of(output(prompt))
    rest = output([*prompt, *whole[:cut]], continuation=cut)
    assert ids_of(rest) == whole[cut:]


def test_the_context_ends_the_answer():
    out = output([1, 2], room=3)
    assert len(ids_of(out)) == 3
    assert out.finish is Finish.LENGTH


@given(prompts)
def test_a_stop_id_ends_the_answer_but_not_before_min_tokens(prompt):
    free = ids_of(output(prompt, ignore_eos=True, max_tokens=20))
    stop = free[10]
    stopped = ids_of(output(prompt, ignore_eos=True, max_tokens=20, stop_token_ids=(stop,)))
    assert stopped == free[: free.index(stop) + 1]
    held = ids_of(output(prompt, ignore_eos=True, max_tokens=20, stop_token_ids=(stop,), min_tokens=15))
    assert stop not in held[:15]


def test_logprobs_are_of_their_ids_and_fall():
    out = output([5, 6], logprobs=4, max_tokens=8, ignore_eos=True)
    while out.finish is None:
        token_id = out.next()
        entry = out.logprob(token_id)
        assert entry.token_id == token_id == entry.top[0][0]
        values = [value for _, value in entry.top]
        assert len({i for i, _ in entry.top}) == 4
        assert values == sorted(values, reverse=True)
        assert entry.logprob < 0


def test_prompts_get_answers_of_many_lengths():
    lengths = {len(ids_of(output(np.arange(i, i + 5)))) for i in range(200)}
    assert len(lengths) > 25


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"text_ids": (1,)}, "two ids or more"),
        ({"stop_id": 100}, "stands among"),
        ({"output_tokens": (9, 3)}, "least <= most"),
    ],
)
def test_a_voice_that_cannot_speak_is_refused(wrong, says):
    fields = {"text_ids": (100, 101), "stop_id": 7, "output_tokens": (1, 2)}
    with pytest.raises(ValueError, match=says):
        OutputVoice(**(fields | wrong))
