"""Coalescing merges deltas, and loses, reorders or withholds none."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.types import Finish, TokenDelta, Usage
from dayzero.serving.coalesce import coalesce, interval_s

USAGE = Usage(prompt_tokens=3, completion_tokens=5)


async def scripted(gaps, *, error=None, closed=None):
    """One id after each gap of so many event-loop turns, then the finish or the error."""
    try:
        for token_id, gap in enumerate(gaps):
            for _ in range(gap):
                await asyncio.sleep(0)
            yield TokenDelta(token_ids=(token_id,))
        if error:
            raise error
        yield TokenDelta(token_ids=(999,), finish=Finish.STOP, usage=USAGE)
    finally:
        if closed is not None:
            closed.append(True)


async def collect(deltas):
    return [delta async for delta in deltas]


@given(st.lists(st.integers(0, 3), max_size=30), st.sampled_from([0.0, 0.0005, 0.003]))
def test_every_id_arrives_once_in_order_and_the_end_is_last(gaps, interval):
    deltas = asyncio.run(collect(coalesce(scripted(gaps), lambda: interval)))
    assert [i for d in deltas for i in d.token_ids] == [*range(len(gaps)), 999]
    assert [d.finish for d in deltas if d.finish] == [Finish.STOP]
    assert deltas[-1].usage == USAGE


async def test_with_an_interval_many_deltas_become_few_frames():
    deltas = await collect(coalesce(scripted([1] * 200), lambda: 0.02))
    assert len(deltas) < 20


async def test_what_came_before_an_error_is_delivered_and_then_the_error_is_raised():
    seen = []
    with pytest.raises(EngineDeadError):
        async for delta in coalesce(scripted([0, 0, 0], error=EngineDeadError("gone")), lambda: 0.001):
            seen += delta.token_ids
    assert seen == [0, 1, 2]


async def test_closing_early_closes_the_engines_iterator():
    closed = []
    merged = coalesce(scripted([0] * 10 + [10_000], closed=closed), lambda: 0.0)
    await anext(merged)
    await merged.aclose()
    assert closed == [True]


def test_a_lone_stream_never_waits_and_many_share_the_budget():
    assert interval_s(1) == 0
    assert interval_s(201, frames_per_s=1000) == pytest.approx(0.2)
