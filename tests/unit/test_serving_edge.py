"""What Serve and the gateway may see of a request's headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.serving.edge import Edge, replaced
from dayzero.telemetry import Roots

ROOTS = Roots()
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def values(headers, name):
    return [value for key, value in headers if key == name]


def test_a_clients_request_id_is_kept_beside_ours_and_cut():
    seen = replaced([(b"x-request-id", b"mine" * 100)], ROOTS)
    (ours,) = values(seen, b"x-request-id")
    assert ours.startswith(b"req_")
    assert values(seen, b"x-client-request-id") == [(b"mine" * 100)[:128]]


def test_a_client_cannot_speak_as_the_edge_does():
    seen = replaced([(b"x-client-request-id", b"forged")], ROOTS)
    assert values(seen, b"x-client-request-id") == []


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-disconnect-disabled",
        b"x-request-timeout-seconds",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
        "x-réquest".encode("latin-1"),
    ],
)
def test_headers_that_would_steer_serve_are_left_out_and_others_pass(name):
    seen = replaced([(name, b"1"), (b"authorization", b"Bearer k")], ROOTS)
    assert values(seen, name) == []
    assert values(seen, b"authorization") == [b"Bearer k"]


def test_a_callers_trace_is_followed():
    seen = replaced([(b"traceparent", TRACEPARENT), (b"tracestate", b"a=b")], ROOTS)
    assert values(seen, b"traceparent") == [TRACEPARENT]
    assert values(seen, b"tracestate") == [b"a=b"]


@pytest.mark.parametrize(
    ("endpoint", "sampler", "kept"),
    [
        ("http://127.0.0.1:1", None, b"01"),
        ("http://127.0.0.1:1", "always_off", b"00"),
        ("http://127.0.0.1:1", "parentbased_always_off", b"00"),
        (None, None, b"00"),
    ],
)
def test_a_request_without_a_trace_gets_one_that_is_kept_as_the_sampler_says(
    monkeypatch, endpoint, sampler, kept
):
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_TRACES_SAMPLER": sampler}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    first, second = (
        replaced([(b"traceparent", b"00-broken"), (b"tracestate", b"a=b")], Roots()) for _ in range(2)
    )
    (one,), (other,) = values(first, b"traceparent"), values(second, b"traceparent")
    assert one.endswith(b"-" + kept)
    assert one[:35] != other[:35]
    assert values(first, b"tracestate") == []


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=200)), max_size=10))
def test_any_headers_come_out_with_one_request_id_and_one_trace(headers):
    seen = replaced(headers, ROOTS)
    assert len(values(seen, b"x-request-id")) == 1
    assert len(values(seen, b"traceparent")) == 1
    assert len(values(seen, b"x-client-request-id")) <= 1


async def test_what_is_no_request_passes_untouched():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)

    await Edge(app)({"type": "lifespan"}, None, None)
    assert seen == [{"type": "lifespan"}]
