"""A long chat request to a simulated Kimi K3: its ids to the token, its cache a turn later, its answer as scripted."""

import json
import random

import msgspec
import pytest

from dayzero.api.chat.conversation import conversation
from dayzero.api.chat.request import ChatCompletionRequest
from dayzero.api.contracts import MOONSHOT
from dayzero.config import Frontend
from dayzero.engine.simulated_profile import load_profile
from dayzero.frontend import kimi_k3
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED
from dayzero.serving.engines.sim import SimulatedEngine
from dayzero.serving.engines.voice import voice_of
from tests.integration.kimi_k3_gateways import answered, post, serving_k3

TOKENS = 200_000
UNIT_TOKENS = 128


class Kept(SimulatedEngine):
    """Remembers what it was asked."""

    def __init__(self, *parts, **options):
        super().__init__(*parts, **options)
        self.prompts = []

    def generate(self, request):
        self.prompts.append(request.prompt_ids)
        return super().generate(request)


@pytest.fixture(scope="module")
def voice():
    return voice_of(Frontend(kind="kimi_k3", options={"vocabulary": str(SHIPPED)}), None, None)


def engine(voice):
    profile = load_profile("kimi-k3-gb300-tp8")
    assert profile.limits.max_model_tokens == 1_048_576
    return Kept(profile, voice, time_scale=0.0)


def long_messages():
    """Text of every kind, with what would be markup if text could be."""
    dice = random.Random(5)
    words = [
        "word",
        " and",
        " the",
        "\n\n",
        " 1234567",
        " naïve",
        "漢字かな",
        " 😀",
        "<|open|>",
        "  ",
        "x = f(y)",
    ]
    text = "".join(dice.choices(words, k=TOKENS // 3))
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Noted.", "reasoning_content": "A long text."},
        {"role": "user", "content": "What is the capital of France?"},
    ]


def ids_of(messages):
    """By a frontend that remembers nothing of what came before."""
    request = msgspec.convert({"model": "m", "messages": messages}, ChatCompletionRequest)
    return kimi_k3.load(environ={}).render(conversation(request, MOONSHOT), scope="").ids


async def test_a_long_requests_ids_reach_the_engine_exactly_cold_and_a_turn_later(k3, voice):
    here = engine(voice)
    async with serving_k3(here, k3) as served:
        messages = long_messages()
        message, reason = await answered(served, stream=True, messages=messages)
        assert (message["content"], reason) == ("The capital of France is Paris.", "stop")
        assert here.prompts[0] == ids_of(messages)
        tokens = len(here.prompts[0]) // 4
        assert tokens > TOKENS
        messages += [{"role": "assistant", **message}, {"role": "user", "content": "And its weather?"}]
        del messages[-2]["tool_calls"]
        body = (await post(served, messages=messages)).json()
        assert here.prompts[1] == ids_of(messages)
        assert body["usage"]["prompt_tokens"] == len(here.prompts[1]) // 4 - 3
        assert tokens - 2 * UNIT_TOKENS <= body["usage"]["cached_tokens"] <= tokens
        await served.check_nothing_is_left()


async def test_a_request_that_is_too_long_is_a_400_before_any_engine_is_asked(k3, voice):
    here = engine(voice)
    async with serving_k3(here, k3) as served:
        answer = await post(served, messages=[{"role": "user", "content": "word " * 1_100_000}])
        assert answer.status_code == 400
        assert "1,048,576" in json.loads(answer.text)["error"]["message"]
        assert here.prompts == []
