"""An answer that nobody has seen any of begins again elsewhere when its replica fails in the middle; one that was seen does not."""

import httpx
import openai
import pytest

from dayzero.engine.errors import EngineDeadError
from dayzero.engine.types import Finish, TokenDelta
from dayzero.gateway.lifetime import Outcome
from dayzero.testing.scripted_engine import HANG, ScriptedEngine
from tests.integration.gateways import serving
from tests.integration.test_gateway_chat import ASK, engine_saying, ids_of


def halves(frontend, *then):
    """Some tokens of an answer, then what is given."""
    return [*(TokenDelta(token_ids=(i,)) for i in ids_of(frontend, "half an answer")[:-1]), *then]


BROKEN_OFF = {
    "dies": lambda: [EngineDeadError("gone")],
    "aborts": lambda: [TokenDelta(finish=Finish.ABORT)],
    "ends without an end": lambda: [TokenDelta(finish=Finish.STOP)],
}


class Unfinished(ScriptedEngine):
    """Keeps its last delta to itself."""

    async def generate(self, request):
        async for delta in super().generate(request):
            if delta.finish is None:
                yield delta


@pytest.mark.parametrize("how", BROKEN_OFF)
async def test_a_buffered_answer_begins_again_on_another_replica(smollm2, how):
    kind = Unfinished if how == "ends without an end" else ScriptedEngine
    broken = kind(lambda _: halves(smollm2, *BROKEN_OFF[how]()))
    async with serving({"a": broken, "b": engine_saying(smollm2, "fine")}, smollm2) as served:
        for _ in range(8):
            answer = await served.client().chat.completions.create(**ASK)
            assert answer.choices[0].message.content == "fine"
            assert answer.usage.completion_tokens == len(ids_of(smollm2, "fine"))
        settled = await served.settled(8)
        assert any(s.attempts == 2 for s in settled), "the broken replica was asked"
        assert {s.outcome for s in settled} == {Outcome.OK}
        await served.check_nothing_is_left()


async def test_a_stream_of_which_nothing_was_seen_begins_again(smollm2):
    # The tokens so far may be the beginning of a stop string, and are held back.
    broken = ScriptedEngine(lambda _: halves(smollm2, EngineDeadError("gone")))
    async with serving({"a": broken, "b": engine_saying(smollm2, "fine")}, smollm2) as served:
        for _ in range(6):
            stream = await served.client().chat.completions.create(
                **ASK, stream=True, stop=["half an answer that goes on"]
            )
            assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "fine"
        assert any(s.attempts == 2 for s in await served.settled(6))


async def test_a_stream_that_was_seen_ends_with_an_error_and_is_not_replayed(smollm2):
    broken = ScriptedEngine(lambda _: halves(smollm2, EngineDeadError("gone")))
    async with serving({"a": broken}, smollm2) as served, httpx.AsyncClient() as http:
        answer = await http.post(
            f"{served.url}/v1/chat/completions", json=ASK | {"stream": True}, headers=served.headers
        )
        assert answer.text.count("half") == 1
        assert '"engine_dead"' in answer.text
        assert len(broken.requests) == 1


async def test_an_engine_that_says_more_than_it_was_asked_is_stopped(smollm2):
    endless = ScriptedEngine(lambda _: [TokenDelta(token_ids=(300,))] * 50 + [HANG])
    async with serving({"a": endless}, smollm2) as served:
        with pytest.raises(openai.InternalServerError):
            await served.client().chat.completions.create(**ASK | {"max_tokens": 8})
        await served.check_nothing_is_left()
