"""A gateway that serves Kimi K3 over a scripted engine, what it is asked, and how its answers are read."""

import json

import httpx
import numpy as np

from dayzero.api.body import decode
from dayzero.api.chat.conversation import conversation
from dayzero.api.chat.request import decoder, mendable
from dayzero.api.contracts import MOONSHOT
from dayzero.engine.types import Finish
from dayzero.testing.scripted_engine import ScriptedEngine, say
from tests.integration.gateways import MODEL, serving
from tests.unit.kimi_k3.answers import END, C, O, call, ids_of

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
ONE = call("look", ("q", "string", 'Oslo "N"\n'))
TWO = (call("look", ("q", "string", "a")), call("look", ("q", "string", "b"), index=2))
THOUGHT = ("let me see", C("think"), O("response"), "Well, ", C("response"))
END_OF_TURN = (C("message"), END)


def engine_saying(k3, *pieces, finish=Finish.STOP):
    return ScriptedEngine(say(ids_of(k3.tokenizer, *pieces), finish=finish))


def serving_k3(engine, k3, **options):
    limits = {"max_model_tokens": 1_048_576, "default_max_tokens": 131_072}
    return serving({"a": engine}, k3, contract=MOONSHOT, **limits | options)


async def post(served, **fields):
    async with httpx.AsyncClient(timeout=30, verify=False) as http:
        return await http.post(f"{served.url}/v1/chat/completions", json=ASK | fields, headers=served.headers)


async def chunks(served, **fields):
    answer = await post(served, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    frames = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert frames[-1] == "[DONE]"
    return [json.loads(frame) for frame in frames[:-1]]


def folded(frames):
    """A stream as the message and finish reason that it adds up to."""
    message, reason = {"reasoning_content": "", "content": "", "tool_calls": []}, None
    for frame in frames:
        for choice in frame["choices"]:
            delta = choice["delta"]
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            message["content"] += delta.get("content") or ""
            for piece in delta.get("tool_calls", ()):
                if "id" in piece:
                    assert piece["index"] == len(message["tool_calls"])
                    message["tool_calls"].append(
                        {"id": piece["id"], "type": "function", "function": dict(piece["function"])}
                    )
                else:
                    message["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"][
                        "arguments"
                    ]
            reason = choice["finish_reason"] or reason
    return message, reason


async def answered(served, *, stream, **fields):
    if stream:
        return folded(await chunks(served, **fields))
    answer = await post(served, **fields)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    message = choice["message"]
    return {
        "reasoning_content": message.get("reasoning_content") or "",
        "content": message["content"] or "",
        "tool_calls": message.get("tool_calls") or [],
    }, choice["finish_reason"]


def prompt_of(k3, **fields):
    request = decode(json.dumps(ASK | fields).encode(), decoder, mendable)
    return np.frombuffer(k3.render(conversation(request, MOONSHOT), scope="").ids, "<u4").tolist()


def prompts(engine):
    return [np.frombuffer(request.prompt_ids, "<u4").tolist() for request in engine.requests]
