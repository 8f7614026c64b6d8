"""Kimi K3's API in a region, simulated: reasoning, calls, both usages, refusals, grammars and the prefix cache."""

import json
import uuid

import openai
import pytest

from tests.e2e.regions import K3, K3_ALIAS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather", "parameters": CITY},
}


def ask(text, **more):
    return {"model": K3, "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def client(simulated):
    return simulated.client()


def test_reasoning_and_answer_come_apart_streamed_and_not(client):
    body = ask("What is the capital of France?") | {"model": K3_ALIAS}
    whole = client.chat.completions.create(**body)
    message = whole.choices[0].message
    assert message.content == "The capital of France is Paris."
    assert message.reasoning_content.startswith("A question of geography.")
    assert whole.choices[0].finish_reason == "stop"
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**body, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    reasoning = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(reasoning) == message.reasoning_content
    silent = client.chat.completions.create(**body, reasoning_effort="none").choices[0].message
    assert silent.content == message.content
    assert not getattr(silent, "reasoning_content", None)


def test_a_tool_is_called_streamed_and_not_and_its_result_is_answered(client):
    body = ask("How is the weather in Paris?", tools=[WEATHER])
    whole = client.chat.completions.create(**body).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, call.id, call.function.name) == (
        "tool_calls",
        "functions.get_weather:0",
        "get_weather",
    )
    assert json.loads(call.function.arguments) == {"city": "Paris", "days": 2}
    chunks = list(client.chat.completions.create(**body, stream=True))
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert pieces[0].id == call.id
    assert "".join(piece.function.arguments or "" for piece in pieces) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    history = [*body["messages"], whole.message.model_dump(exclude_none=True)]
    history.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    after = client.chat.completions.create(model=K3, messages=history, tools=[WEATHER])
    assert after.choices[0].message.content.startswith("That is what the tool found.")


def test_usage_stands_in_both_places_of_a_streams_last_chunk(client):
    *others, last = client.chat.completions.create(**ask("Hello", max_tokens=20), stream=True)
    assert last.usage is not None
    assert last.usage.completion_tokens == 20
    assert last.choices[0].usage == last.usage.model_dump(exclude_none=True)
    assert last.usage.cached_tokens == last.usage.prompt_tokens_details.cached_tokens
    assert all(chunk.usage is None for chunk in others)


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 1.5), ("top_p", 0.5), ("tool_choice", "required")]
)
def test_what_kimi_k3_does_not_take_is_a_400_that_names_it(client, field, value):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**ask("Hello", **{field: value}))
    assert raised.value.param == field


def test_a_second_turn_finds_the_first_in_the_cache(client):
    messages = [{"role": "user", "content": f"{uuid.uuid4()} " + "Remember this line. " * 400}]
    first = client.chat.completions.create(model=K3, messages=messages, max_tokens=8)
    assert first.usage.cached_tokens == 0
    messages += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "user", "content": "And now?"},
    ]
    second = client.chat.completions.create(model=K3, messages=messages, max_tokens=8)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens - 256
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_is_obeyed(client, stream):
    schema = {"name": "city", "schema": CITY, "strict": True}
    for number in range(5):
        body = ask(f"City {number}", response_format={"type": "json_schema", "json_schema": schema})
        answer = client.chat.completions.create(**body, stream=stream)
        content = (
            "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            if stream
            else answer.choices[0].message.content
        )
        value = json.loads(content)
        assert isinstance(value["city"], str)
        assert set(value) <= {"city", "days"}
        assert isinstance(value.get("days", 1), int)


def test_a_required_call_is_made(client):
    for number in range(5):
        body = ask(f"Number {number}", tools=[WEATHER], tool_choice="required")
        choice = client.chat.completions.create(**body).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert {call.function.name for call in choice.message.tool_calls} == {"get_weather"}


def test_an_odd_answer_is_mended_and_counted(client, simulated):
    import httpx

    def counted():
        lines = httpx.get(f"{simulated.url}/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if "_total{" in line and '"think_not_closed"' in line
        )

    before = counted()
    body = ask("Please with the oddity think_not_closed", tools=[WEATHER])
    choice = client.chat.completions.create(**body).choices[0]
    assert choice.message.content == "Here is an odd answer."
    assert choice.finish_reason == "tool_calls"
    assert counted() == before + 1
