"""`dayzero up --engine sim`: many clients at once, what is left of them, and what the region says of itself."""

import asyncio
import json
import random
import time

import httpx
import openai
import pytest

from tests.e2e.regions import ALIAS, K3, K3_ALIAS, MODEL, POOL, ask, frames, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 200
SPANS = {
    "gateway.request",
    "gateway.render",
    "gateway.place",
    "gateway.dispatch",
    "replica.generate",
    "replica_handle_request gateway __call__",
    f"route_to_replica {POOL} generate",
    f"replica_handle_request {POOL} generate",
}


def total(rows, name):
    return sum(row[name] for row in rows.values())


def test_up_ends_with_a_region_that_is_ready_and_status_says_so(simulated, figure):
    figure(f"dayzero up --engine sim: {simulated.up_s:.1f} s")
    assert httpx.get(f"{simulated.url}/readyz").status_code == 200
    assert httpx.get(f"{simulated.url}/livez").status_code == 200
    shown = simulated.command("status", "--json")
    assert shown.returncode == 0
    status = json.loads(shown.stdout)["us-east"]
    assert set(status) == {
        "region",
        "ready",
        "reason",
        "models",
        "cache",
        "feed",
        "gateway",
        "regions",
        "local",
    }
    assert status["local"]["store"] == {
        "url": simulated.store_url,
        "pid": simulated.store_server().pid,
        "answers": True,
        "kept": True,
    }
    assert status["ready"] is True
    assert set(status["gateway"]) == {"in_flight", "requests_total", "uptime_s"}
    model, k3 = status["models"]
    assert (model["model"], k3["model"]) == (MODEL, K3)
    assert (len(model["replicas"]), len(k3["replicas"])) == (2, 1)
    assert len({row["incarnation"] for row in model["replicas"]}) == 2
    for row in model["replicas"]:
        assert (row["health"], row["doing"], row["engine"]) == ("ok", "idle", "sim")
        assert 0 <= row["report_age_s"] < 30
        assert row["up_s"] > 0
    table = simulated.command("status")
    assert table.returncode == 0
    assert all(row["replica"] in table.stdout for row in model["replicas"])


def test_the_api_page_describes_what_is_served(simulated):
    document = httpx.get(f"{simulated.url}/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert {"/v1/chat/completions", "/v1/models", "/v1/models/{model}", "/readyz"} <= set(document["paths"])
    schemas = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    page = httpx.get(f"{simulated.url}/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text


def references(node):
    if isinstance(node, dict):
        yield from ([node["$ref"]] if "$ref" in node else [])
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from references(child)


def test_a_request_is_explained_by_the_id_that_its_client_saw(simulated):
    answer = simulated.client().chat.completions.create(**ask("Why there?", max_tokens=4))
    simulated.wait_until_idle(5)
    said = simulated.command("explain", answer.id, "--json")
    assert said.returncode == 0, said.stderr
    (record,) = json.loads(said.stdout)["decisions"]
    assert record["request_id"].removeprefix("req_") == answer.id.removeprefix("chatcmpl-")
    assert (record["outcome"], record["prompt_tokens"]) == ("ok", answer.usage.prompt_tokens)
    (attempt,) = record["attempts"]
    assert {candidate["replica"] for candidate in attempt["candidates"]} == set(simulated.replicas())
    assert attempt["replica"] == attempt["candidates"][0]["replica"]
    assert attempt["first_token_s"] > 0
    assert attempt["cached_tokens"] == answer.usage.prompt_tokens_details.cached_tokens
    table = simulated.command("explain", record["request_id"].removeprefix("req_"))
    assert table.returncode == 0
    assert f"{attempt['replica']} *" in table.stdout
    assert simulated.command("explain", "req_" + 24 * "0").returncode == 1
    assert simulated.command("explain", "req_unknown").returncode == 2


def test_models_are_listed_and_found_by_name_and_alias(simulated):
    client = simulated.client()
    assert [model.id for model in client.models.list()] == [MODEL, K3]
    assert client.models.retrieve(ALIAS).id == MODEL
    assert client.models.retrieve(K3_ALIAS).id == K3
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


async def test_two_hundred_streams_at_once_all_end_and_leave_nothing_behind(simulated, figure):
    before = simulated.replicas()
    began_s = time.monotonic()
    async with simulated.async_client(timeout=300) as client:

        async def one(number):
            stream = await client.chat.completions.create(
                **ask(f"Number {number}?", stream=True, stream_options={"include_usage": True}, max_tokens=40)
            )
            chunks = [chunk async for chunk in stream]
            (finish,) = [
                c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason
            ]
            return finish, chunks[-1].usage.completion_tokens

        ends = await asyncio.gather(*(one(number) for number in range(STREAMS)))
    took_s = time.monotonic() - began_s
    assert all(tokens == 40 if finish == "length" else tokens <= 40 for finish, tokens in ends)
    assert {finish for finish, _ in ends} == {"stop", "length"}
    idle_s = simulated.wait_until_idle(5)
    after = simulated.replicas()
    tokens = sum(tokens for _, tokens in ends)
    canaries = 2 + int(took_s)
    assert tokens <= total(after, "generated_tokens_total") - total(before, "generated_tokens_total")
    assert STREAMS <= total(after, "requests_total") - total(before, "requests_total") <= STREAMS + canaries
    shares = [after[name]["requests_total"] - before[name]["requests_total"] for name in after]
    assert min(shares) > STREAMS / 4, "one replica had nearly all of them"
    figure(
        f"{STREAMS} streams, {tokens} tokens in {took_s:.1f} s, shares {shares}; all counts zero {idle_s:.2f} s later"
    )


async def test_of_two_hundred_clients_some_leave_and_their_work_stops(simulated, figure):
    dice = random.Random(7)
    leavers = {number: dice.random() * 2.0 for number in dice.sample(range(STREAMS), 3 * STREAMS // 10)}
    before = simulated.replicas()
    ended, left = [], []
    async with simulated.async_client(timeout=300) as client:

        async def one(number):
            body = ask(f"Leave {number}?", stream=number % 2 == 0, max_tokens=100)
            if number in leavers:
                body |= {"max_tokens": 5000, "extra_body": {"ignore_eos": True}}
            answer = await client.chat.completions.create(**body)
            if number % 2 == 0:
                finish = [chunk.choices[0].finish_reason async for chunk in answer][-1]
            else:
                finish = answer.choices[0].finish_reason
            ended.append(finish)

        async def leaves(number):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(leavers[number]):
                    await one(number)
            left.append(number)

        await asyncio.gather(
            *(leaves(number) if number in leavers else one(number) for number in range(STREAMS))
        )
    assert len(left) == len(leavers)
    assert len(ended) == STREAMS - len(leavers)
    assert set(ended) <= {"stop", "length"}
    idle_s = simulated.wait_until_idle(5)
    generated = total(simulated.replicas(), "generated_tokens_total") - total(
        before, "generated_tokens_total"
    )
    assert generated < 100 * STREAMS + 1000 * len(leavers), "abandoned answers were generated to their end"
    figure(
        f"{len(leavers)} of {STREAMS} left; all counts zero {idle_s:.2f} s after the last; {generated} tokens made"
    )


def test_a_buffered_answer_is_the_streamed_one_to_the_token(simulated):
    client = simulated.client()
    body = ask("Say the same twice.", seed=11, max_tokens=120, logprobs=True, top_logprobs=2)
    whole = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert choices[-1].finish_reason == whole.choices[0].finish_reason
    streamed = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert streamed == whole.choices[0].logprobs.content
    assert len(streamed) == whole.usage.completion_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    other = client.chat.completions.create(**(body | {"seed": 12}))
    assert other.choices[0].message.content != whole.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_cannot_steer_the_server_with_its_headers(simulated, stream):
    headers = {
        "x-request-id": "mine",
        "x-client-request-id": "forged",
        "x-request-disconnect-disabled": "1",
        "x-request-timeout-seconds": "0.001",
        "serve_multiplexed_model_id": "other",
    }
    answer = simulated.post(
        json.dumps(ask("Hello", max_tokens=60, ignore_eos=True, stream=stream)), **headers
    )
    assert answer.status_code == 200
    (request_id,) = answer.headers.get_list("x-request-id")
    assert request_id.startswith("req_")
    body = json.loads(frames(answer.text)[0]) if stream else answer.json()
    assert body["id"].removeprefix("chatcmpl-") == request_id.removeprefix("req_")


def test_a_client_that_asks_for_no_disconnects_is_still_seen_to_leave(simulated):
    with (
        httpx.Client() as http,
        http.stream(
            "POST",
            f"{simulated.url}/v1/chat/completions",
            json=ask("Hello", max_tokens=8000, ignore_eos=True, stream=True),
            headers={**simulated.headers, "x-request-disconnect-disabled": "1"},
        ) as answer,
    ):
        lines = answer.iter_lines()  # held: without it httpx leaves at once
        assert next(lines).startswith("data: ")
        assert simulated.status()["gateway"]["in_flight"] == 1
    simulated.wait_until_idle(5)


def test_every_answer_has_one_request_id_errors_included(simulated):
    answers = [
        httpx.get(f"{simulated.url}/livez"),
        httpx.get(f"{simulated.url}/no/such/path"),
        httpx.get(f"{simulated.url}/v1/models"),
        simulated.post("{"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 400]
    ids = [answer.headers.get_list("x-request-id") for answer in answers]
    assert all(len(named) == 1 for named in ids)
    assert len({named[0] for named in ids}) == len(answers)


def test_metrics_hold_what_happened(simulated):
    def metrics():
        lines = httpx.get(f"{simulated.url}/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    def counted(name, **labels):
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [
            value
            for key, value in metrics().items()
            if key.partition("{")[0] == name and all(w in key for w in wanted)
        ]
        return sum(found)

    requests, tokens = "dayzero_gateway_requests_total", "dayzero_gateway_completion_tokens_total"
    before = {
        "length": counted(requests, finish="length", status_class="2xx"),
        "4xx": counted(requests, status_class="4xx"),
        "tokens": counted(tokens, model=MODEL),
        "first": counted("dayzero_gateway_first_token_seconds_count", model=MODEL),
        "large": counted("dayzero_gateway_rejected_bodies_total", cause="too_large"),
    }
    simulated.client().chat.completions.create(
        **ask("Count me", max_tokens=7), extra_body={"ignore_eos": True}
    )
    assert simulated.post(b"[" * 9_000_000).status_code == 413
    wait_until(lambda: counted(requests, status_class="4xx") == before["4xx"] + 1, 10)
    assert counted(requests, finish="length", status_class="2xx") == before["length"] + 1
    assert counted(tokens, model=MODEL) == before["tokens"] + 7
    assert counted("dayzero_gateway_first_token_seconds_count", model=MODEL) == before["first"] + 1
    assert counted("dayzero_gateway_rejected_bodies_total", cause="too_large") == before["large"] + 1
    assert counted("dayzero_gateway_replicas", state="healthy") == 3
    assert counted("dayzero_gateway_in_flight_requests") == 0


def test_only_an_operator_sees_the_internal_status(simulated):
    assert httpx.get(f"{simulated.url}/internal/v1/status").status_code == 401
    assert httpx.get(f"{simulated.url}/internal/v1/status", headers=simulated.headers).status_code == 403


@pytest.mark.parametrize("caller", [True, False], ids=["with a caller's trace", "without one"])
def test_one_request_is_one_trace_over_gateway_ray_and_replica(simulated, sink, caller):
    trace_id, caller_id = "5b8aa5a2d2c872e8321cf37308d69df2", "051581bf3cb55c13"
    headers = {"traceparent": f"00-{trace_id}-{caller_id}-01"} if caller else {}
    answer = simulated.post(json.dumps(ask("Trace me", max_tokens=5)), **headers)
    request_id = answer.headers["x-request-id"]
    check_trace(sink.of_request(request_id, SPANS), (trace_id, caller_id) if caller else None)


def check_trace(spans, caller):
    """Every span of a request's way in one trace, each below the one that caused it."""
    (trace_id,) = {span.trace_id for span in spans}
    named = {span.name: span for span in spans}
    assert len(named) == len(spans)
    request, dispatch = named["gateway.request"], named["gateway.dispatch"]
    outside = request.parent_id
    if caller:
        assert (trace_id, outside) == caller
    assert outside not in {span.span_id for span in spans}
    route = named[f"route_to_replica {POOL} generate"]
    parents = {
        "replica_handle_request gateway __call__": outside,
        "gateway.render": request.span_id,
        "gateway.place": request.span_id,
        "gateway.dispatch": request.span_id,
        route.name: dispatch.span_id,
        f"replica_handle_request {POOL} generate": route.span_id,
        "replica.generate": dispatch.span_id,
    }
    assert {name: named[name].parent_id for name in parents} == parents
    assert [span.name for span in spans if "error.type" in span.attributes] == []
    assert {span.service for span in spans} == {"dayzero-gateway", "dayzero-replica", "dayzero-serve"}
    assert named["replica.generate"].attributes["dayzero.completion_tokens"] == 5
    # It may end a moment after the request, whose answer is whole before the replica has put its things away.
    assert request.start_s <= dispatch.start_s <= named["replica.generate"].start_s <= request.end_s


def test_a_trace_that_its_caller_does_not_keep_leaves_no_spans(simulated, sink):
    answer = simulated.post(
        json.dumps(ask("Forget me", max_tokens=5)), traceparent=f"00-{'ab' * 16}-{'cd' * 8}-00"
    )
    assert answer.status_code == 200
    kept = simulated.post(json.dumps(ask("Keep me", max_tokens=5)))
    sink.of_request(kept.headers["x-request-id"], SPANS)
    assert "ab" * 16 not in {span.trace_id for span in sink.all()}
