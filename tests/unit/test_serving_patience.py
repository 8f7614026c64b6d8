"""Waiting ends when the sender is lost, and for nothing else."""

import asyncio

import pytest

from dayzero.serving.patience import LostError, patient


async def numbers(count, *, then_hang=False):
    for i in range(count):
        await asyncio.sleep(0)
        yield i
    if then_hang:
        await asyncio.Event().wait()


async def test_every_item_arrives_and_the_end_is_the_end():
    assert [i async for i in patient(numbers(100), lambda: True, every_s=60)] == list(range(100))


async def test_a_lost_sender_ends_the_wait_after_what_it_had_sent():
    seen = []
    with pytest.raises(LostError):
        async for i in patient(numbers(3, then_hang=True), lambda: True, every_s=0.01):
            seen += [i]
    assert seen == [0, 1, 2]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_slow_sender_that_is_not_lost_is_waited_for():
    async def slow():
        await asyncio.sleep(0.1)
        yield 1

    assert [i async for i in patient(slow(), lambda: False, every_s=0.01)] == [1]


async def test_a_reader_that_is_busy_with_an_item_is_never_interrupted():
    seen = 0
    async for _ in patient(numbers(3), lambda: True, every_s=0.01):
        await asyncio.sleep(0.05)
        seen += 1
    assert seen == 3


async def test_a_readers_own_cancellation_passes_through():
    async def read():
        async for _ in patient(numbers(1, then_hang=True), lambda: False, every_s=0.01):
            pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.03)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_closed_early_it_looks_no_more():
    looks = []
    items = patient(numbers(5), lambda: bool(looks.append(1)), every_s=0.01)
    assert await anext(items) == 0
    await items.aclose()
    await asyncio.sleep(0.05)
    assert looks == []
