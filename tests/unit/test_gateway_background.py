"""Work beside the requests: what ends with an exception is said and begun again."""

import asyncio

import pytest

from dayzero.gateway.background import kept_up


async def test_what_fails_is_logged_and_begun_again_until_it_returns(caplog):
    begun = []

    async def work():
        begun.append(True)
        if len(begun) < 3:
            raise ValueError("what is this")

    await kept_up("the feed", work, pause_s=0.0)
    assert len(begun) == 3
    assert caplog.text.count("the feed failed") == 2
    assert "what is this" in caplog.text


async def test_a_cancelled_one_ends_without_a_word(caplog):
    task = asyncio.create_task(kept_up("the feed", asyncio.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caplog.text == ""
