"""A dispatch that is given up, with Serve's own response object and a replica's result of ours."""

import asyncio

import pytest

pytest.importorskip("ray.serve")
from ray.serve._private.common import RequestMetadata
from ray.serve.handle import DeploymentResponseGenerator

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.frames import encode_delta
from dayzero.engine.types import EngineRequest, Finish, Sampling, TokenDelta, pack_ids
from dayzero.router.inflight import InFlight
from dayzero.serving.dispatch import ServeDispatch
from dayzero.serving.ticket import Ticket

REQUEST = EngineRequest(request_id="r", prompt_ids=pack_ids([1, 2]), sampling=Sampling(max_tokens=4))


class Result:
    """What Serve gets from a replica: frames, then silence, or the end."""

    def __init__(self, *frames, ends=False):
        self.frames = list(frames)
        self.ends = ends
        self.cancelled = 0

    def cancel(self):
        self.cancelled += 1

    async def __anext__(self):
        if self.frames:
            return self.frames.pop(0)
        if not self.ends:
            await asyncio.Event().wait()
        raise StopAsyncIteration


class Handle:
    """A handle whose router is `assign`; `generate.remote` gives Serve's own response, on the caller's loop."""

    def __init__(self, assign):
        self._assign = assign

    @property
    def generate(self):
        return self

    def remote(self, ticket, payload):
        self.assigning = asyncio.get_running_loop().create_task(self._assign())
        metadata = RequestMetadata("r", "r", is_streaming=True)
        return DeploymentResponseGenerator(
            self.assigning, metadata, _is_router_running_in_separate_loop=False
        )


class Dispatched:
    def __init__(self, assign, lost=lambda _: False):
        self.book = InFlight()
        self.handle = Handle(assign)
        self.deltas = []
        held = self.book.reserve("a", 2, 0.0)
        self.task = asyncio.create_task(
            self._read(ServeDispatch(self.handle, REQUEST, Ticket(("a",)), held, lost=lost))
        )

    async def _read(self, dispatch):
        self.deltas += [delta async for delta in dispatch.deltas()]

    async def give_up(self):
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task
        assert self.book.total == 0


async def test_given_up_in_the_instant_of_its_assignment_a_call_is_cancelled():
    result = Result()

    async def assign():
        # The reader hears of the assignment in the loop's next turn, and of this just before.
        asyncio.get_running_loop().call_soon(dispatched.task.cancel)
        return result

    dispatched = Dispatched(assign)
    with pytest.raises(asyncio.CancelledError):
        await dispatched.task
    assert result.cancelled == 1
    assert dispatched.book.total == 0


async def test_given_up_while_it_waits_for_a_replica_no_replica_gets_it():
    reached = asyncio.Event()

    async def assign():
        reached.set()
        await asyncio.Event().wait()

    dispatched = Dispatched(assign)
    await reached.wait()
    await dispatched.give_up()
    assert dispatched.handle.assigning.cancelled()


async def test_given_up_after_a_token_its_call_is_cancelled_once():
    result = Result(encode_delta(TokenDelta(token_ids=(5,))))

    async def assign():
        return result

    dispatched = Dispatched(assign)
    while result.frames:
        await asyncio.sleep(0)
    await dispatched.give_up()
    assert result.cancelled == 1


async def test_an_answer_that_ended_is_not_cancelled():
    result = Result(encode_delta(TokenDelta(token_ids=(5,), finish=Finish.LENGTH)), ends=True)

    async def assign():
        return result

    dispatched = Dispatched(assign)
    await dispatched.task
    assert [delta.finish for delta in dispatched.deltas] == [Finish.LENGTH]
    assert result.cancelled == 0
    assert dispatched.book.total == 0


async def test_a_replica_that_vanished_is_a_dead_engine():
    from ray.exceptions import ActorDiedError

    async def assign():
        raise ActorDiedError

    dispatched = Dispatched(assign)
    with pytest.raises(EngineDeadError):
        await dispatched.task
    assert dispatched.book.total == 0


async def test_a_replica_that_went_silent_is_a_dead_engine_and_its_call_is_given_up():
    result = Result(encode_delta(TokenDelta(token_ids=(5,))))

    async def assign():
        return result

    dispatched = Dispatched(assign, lost=lambda replica: replica == "a")
    async with asyncio.timeout(10):
        with pytest.raises(EngineDeadError, match="silent"):
            await dispatched.task
    assert result.cancelled == 1
    assert dispatched.book.total == 0
