"""Bad input over real HTTP: each a 4xx in OpenAI's shape that names the field, and the server goes on."""

import asyncio
import json
import socket

import httpx
import pytest

from dayzero.gateway.service import GatewayLimits
from dayzero.testing.scripted_engine import ScriptedEngine, repeat
from tests.integration.gateways import MODEL, serving

GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture
async def served(smollm2):
    engine = ScriptedEngine(repeat((300, 301, 302)))
    async with serving({"a": engine}, smollm2, limits=GatewayLimits(max_body_bytes=2_000_000)) as running:
        yield running


async def post(served, content, **headers):
    async with httpx.AsyncClient(timeout=30) as http:
        return await http.post(
            f"{served.url}/v1/chat/completions", content=content, headers=served.headers | headers
        )


def check_error(answer, status, param, code=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert code is None or error["code"] == code
    assert answer.headers["x-request-id"].startswith("req_")


def body(**changes):
    return json.dumps(GOOD | changes).encode()


@pytest.mark.parametrize(
    ("content", "status", "param", "code"),
    [
        (b"", 400, None, "empty_body"),
        (b"not json", 400, None, "invalid_json"),
        (b'{"model": "x"', 400, None, "invalid_json"),
        (b"[" * 10_000 + b"]" * 10_000, 400, None, "invalid_type"),
        (body()[:-1] + b', "metadata": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400, None, "invalid_json"),
        (body(messages="hi"), 400, "messages", "invalid_value"),
        (body(temperature="hot"), 400, "temperature", "invalid_value"),
        (body()[:-1] + b', "temperature": NaN}', 400, "temperature", "invalid_value"),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}',
            400,
            "messages[0].content",
            "invalid_value",
        ),
        (body(model="gpt-9"), 404, "model", "model_not_found"),
        (
            body(messages=[{"role": "user", "content": "word " * 10_000}]),
            400,
            "messages",
            "context_length_exceeded",
        ),
        (
            body(messages=[{"role": "user", "content": ""}] * 20_000),
            400,
            "messages",
            "context_length_exceeded",
        ),
        (
            body(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 9_000}]),
            400,
            "messages",
            "context_length_exceeded",
        ),
        (body(max_tokens=1_000_000), 400, "max_completion_tokens", "context_length_exceeded"),
        (body(stop=["x"] * 6), 400, "stop", "invalid_value"),
        (
            body(tools=[{"type": "function", "function": {"name": "f", "parameters": {"a": [[[[[[]]]]]]}}}]),
            400,
            "tools",
            None,
        ),
        (b"x" * 10_000_000, 413, "body", "request_too_large"),
    ],
)
async def test_a_bad_request_is_refused_by_field_and_the_next_one_is_served(
    served, content, status, param, code
):
    check_error(await post(served, content), status, param, code)
    assert (await post(served, body())).status_code == 200
    await served.check_nothing_is_left()


async def test_a_body_without_a_declared_length_is_bounded_too(served):
    async def chunks():
        for _ in range(100):
            yield b"x" * 100_000

    async with httpx.AsyncClient(timeout=30) as http:
        answer = await http.post(
            f"{served.url}/v1/chat/completions", content=chunks(), headers=served.headers
        )
    check_error(answer, 413, "body", "request_too_large")


@pytest.mark.parametrize(
    ("value", "status"),
    [(None, 401), ("Bearer wrong", 401), ("Basic abc", 401), ("Bearer a b", 401)],
)
async def test_a_missing_or_wrong_key_is_a_401_before_the_body_is_read(served, value, status):
    async with httpx.AsyncClient(timeout=30) as http:
        headers = {} if value is None else {"authorization": value}
        answer = await http.post(f"{served.url}/v1/chat/completions", content=b"x" * 1000, headers=headers)
    check_error(answer, status, None, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_the_key_is_checked_before_a_slow_body_arrives(served):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
    async with asyncio.timeout(5):
        status = await reader.readline()
    assert b" 401 " in status
    writer.close()


async def test_a_body_that_never_comes_is_given_up(smollm2):
    limits = GatewayLimits(body_timeout_s=0.2)
    async with serving({"a": ScriptedEngine(repeat((300,)))}, smollm2, limits=limits) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.key}\r\n"
        writer.write(head.encode() + b"content-length: 1000\r\n\r\n{")
        async with asyncio.timeout(5):
            assert b" 408 " in await reader.readline()
        writer.close()
        await served.check_nothing_is_left()


async def test_an_operators_key_opens_status_and_nothing_else(served):
    async with httpx.AsyncClient(timeout=30) as http:
        operator = {"authorization": f"Bearer {served.operator_key}"}
        status = await http.get(f"{served.url}/internal/v1/status", headers=operator)
        assert status.json()["models"][0]["model"] == MODEL
        assert (await http.get(f"{served.url}/internal/v1/status", headers=served.headers)).status_code == 403
        assert (await http.get(f"{served.url}/v1/models", headers=operator)).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v2/nothing", 404),
        ("GET", "/", 404),
        ("DELETE", "/livez", 405),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/models/", 404),
    ],
)
async def test_unknown_paths_and_methods_are_errors_in_the_same_shape(served, method, path, status):
    async with httpx.AsyncClient(timeout=30) as http:
        answer = await http.request(method, served.url + path, headers=served.headers)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")


async def test_models_and_pages_are_served(served):
    client = served.client()
    models = await client.models.list()
    assert [m.id for m in models.data] == [MODEL]
    assert (await client.models.retrieve("smollm2")).id == MODEL
    async with httpx.AsyncClient(timeout=30) as http:
        document = (await http.get(f"{served.url}/openapi.json")).json()
        assert "/v1/chat/completions" in document["paths"]
        assert "swagger" in (await http.get(f"{served.url}/docs")).text.lower()
        assert (await http.head(f"{served.url}/livez")).status_code == 200


async def test_a_client_that_leaves_before_its_body_is_read_is_no_error(served):
    sock = socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1])))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.key}\r\n"
    sock.sendall(head.encode() + b"content-length: 1000\r\n\r\n{")
    sock.close()
    (settlement,) = await served.settled()
    assert settlement.status == 499
    assert (await post(served, body())).status_code == 200


async def test_what_users_send_is_never_in_the_log(served, caplog):
    canary = "hunter2-canary"
    caplog.set_level("DEBUG")
    await post(served, body(messages=[{"role": "user", "content": canary}]))
    await post(served, json.dumps({"model": canary, "messages": [canary]}).encode())
    await post(served, canary.encode())
    await post(served, body(model=canary))
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("dayzero")]
    assert not [line for line in ours if canary in line or served.key in line]
