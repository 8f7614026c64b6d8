"""Kimi K3's grammar on real vLLM, through POST /v1/chat/completions: a model that knows nothing gives valid answers.

The model is K3's test double: random weights, K3's vocabulary (the real one where it is, else the one shipped here).
"""

import asyncio
import json
import os

import httpx
import pytest
import pytest_asyncio

from dayzero.api.contracts import MOONSHOT
from dayzero.frontend.kimi_k3 import load
from dayzero.serving.engines.vllm import VLLMEngine
from dayzero.serving.engines.vllm_config import cpu_environment
from tests.engine.k3_double import write_double
from tests.engine.k3_requests import random_request
from tests.engine.vllm_support import needs_vllm, run_dir, tiny_config
from tests.integration.gateways import MODEL, serving

jsonschema = pytest.importorskip("jsonschema")
pytestmark = [*needs_vllm, pytest.mark.asyncio(loop_scope="module")]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
REQUESTS = 56
CONTEXT_TOKENS = 4096


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory):
    os.environ.update(cpu_environment())
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    frontend = load(None, text_characters=12)
    model = write_double(tmp_path_factory.mktemp("kimi-k3-double"), frontend.vocabulary)
    async with run_dir() as run:
        config = tiny_config(
            model,
            run,
            max_model_tokens=CONTEXT_TOKENS,
            max_num_batched_tokens=CONTEXT_TOKENS,
            kv_cache_bytes=32 << 20,
            max_num_seqs=16,
            grammars=True,
        )
        async with serving(
            {"double": VLLMEngine(config)},
            frontend,
            max_model_tokens=CONTEXT_TOKENS,
            contract=MOONSHOT,
            slots=64,
        ) as served:
            yield served


class Answers:
    """One connection pool; an answer is the message and its finish reason, streamed or not."""

    def __init__(self, served, client):
        self._url = f"{served.url}/v1/chat/completions"
        self._headers = served.headers
        self._client = client

    async def ask(self, body):
        body = {"model": MODEL} | body
        response = await self._client.post(self._url, json=body, headers=self._headers)
        assert response.status_code == 200, response.text
        if body.get("stream"):
            return joined([line[6:] for line in response.text.splitlines() if line.startswith("data: ")])
        choice = response.json()["choices"][0]
        return choice["message"], choice["finish_reason"]

    async def refused(self, body):
        response = await self._client.post(self._url, json={"model": MODEL} | body, headers=self._headers)
        return response.status_code, response.json()["error"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers(served):
    async with httpx.AsyncClient(timeout=120) as client:
        yield Answers(served, client)


def joined(frames):
    assert frames[-1] == "[DONE]"
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for frame in map(json.loads, frames[:-1]):
        assert "error" not in frame, frame
        for choice in frame["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(call)
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"][
                        "arguments"
                    ]
            finish = choice["finish_reason"] or finish
    return message, finish


def check(asked, message, finish):
    calls = message.get("tool_calls") or []
    least, most = asked.calls
    assert len(calls) >= least
    assert most < 0 or len(calls) <= most
    assert finish == ("tool_calls" if calls else "stop")
    for i, call in enumerate(calls):
        name = call["function"]["name"]
        assert call["id"] == f"functions.{name}:{i}"
        jsonschema.validate(json.loads(call["function"]["arguments"]), asked.parameters[name])
    content = message.get("content") or ""
    if asked.content is not None and (content or not calls):
        jsonschema.validate(json.loads(content), asked.content)
    assert asked.thinks or not message.get("reasoning_content")


async def test_every_random_request_gets_a_valid_answer(served, answers):
    asked = [random_request(seed) for seed in range(REQUESTS)]
    before = len(served.settlements)
    got = await asyncio.gather(*(answers.ask(one.body) for one in asked))
    for one, (message, finish) in zip(asked, got, strict=True):
        check(one, message, finish)
    assert any(message.get("reasoning_content") for message, _ in got)
    assert sum(len(message.get("tool_calls") or ()) for message, _ in got) > REQUESTS / 2
    settled = await served.settled(before + REQUESTS)
    assert [one.degraded for one in settled[before:]] == [()] * REQUESTS


def with_tool(parameters):
    function = {"name": "t", "parameters": parameters, "strict": True}
    return {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "max_completion_tokens": 600,
    }


def member(schema):
    """In an object within an argument: where xgrammar reads the schema itself."""
    return {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": schema}}}}


@pytest.mark.parametrize(
    "schema",
    [
        member({"type": "string", "pattern": "(unclosed"}),
        member({"type": "string", "pattern": r"(.{1,500}){1,500}"}),
        member({"type": "nonsense"}),
        member({"anyOf": [member({"maxLength": i}) for i in range(400)]}),
        member({"$ref": "#/$defs/none"}),
    ],
    ids=["bad pattern", "hostile pattern", "no type", "hostile branches", "no such part"],
)
async def test_a_bad_schema_is_a_400_that_names_the_tools_and_harms_nobody(answers, schema):
    beside = asyncio.create_task(answers.ask(with_tool(CITY) | {"seed": 1}))
    status, error = await answers.refused(with_tool(schema))
    assert status == 400
    assert error["param"].startswith("tools")
    message, finish = await beside
    assert finish == "tool_calls"
    jsonschema.validate(json.loads(message["tool_calls"][0]["function"]["arguments"]), CITY)
