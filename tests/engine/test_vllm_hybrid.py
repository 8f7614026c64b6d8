"""A tiny Qwen3-Next on real vLLM: attention and state groups, as in Kimi K3."""

import asyncio
import gzip
import os
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import pytest_asyncio

from dayzero.engine.kv_events import BlockStored, GroupKind
from dayzero.engine.types import unpack_ids
from tests.engine.vllm_support import (
    QWEN3_NEXT,
    collect,
    needs_vllm,
    request,
    run_dir,
    started,
    tiny_config,
    wait_until,
    write_config,
)

pytestmark = [*needs_vllm, pytest.mark.asyncio(loop_scope="module")]


class SpanSink(ThreadingHTTPServer):
    """An OTLP/HTTP collector on loopback that keeps what it gets."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self._handler())
        self.spans = []
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def _handler(sink):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
                    ExportTraceServiceRequest,
                )

                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                got = ExportTraceServiceRequest.FromString(body)
                sink.spans += [
                    span
                    for group in got.resource_spans
                    for scope in group.scope_spans
                    for span in scope.spans
                ]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                """Silent."""

        return Handler

    def close(self):
        self.shutdown()
        self.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def span_sink():
    sink = SpanSink()
    variables = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    yield sink
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    sink.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory, span_sink):
    model = write_config(tmp_path_factory.mktemp("qwen3next"), QWEN3_NEXT)
    async with run_dir() as run:
        config = tiny_config(
            model,
            run,
            load_format="dummy",
            block_tokens=None,
            max_model_tokens=4096,
            max_num_batched_tokens=4096,
            kv_cache_bytes=128 << 20,
            max_num_seqs=4,
            otlp_endpoint=span_sink.endpoint,
        )
        async with started(config) as engine:
            yield engine


def ids(seed: int, count: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(10, 1000) for _ in range(count)]


async def test_the_groups_are_what_the_running_engine_resolved(engine):
    info = engine.info
    assert {group.kind for group in info.cache_groups} == {GroupKind.ATTENTION, GroupKind.STATE}
    assert len({group.group for group in info.cache_groups}) == len(info.cache_groups)
    assert all(group.block_tokens % info.match_unit_tokens == 0 for group in info.cache_groups)
    assert max(group.block_tokens for group in info.cache_groups) > 32, "raised until a page holds a state"


async def test_the_third_sibling_of_a_prefix_hits_at_the_junction(engine):
    """KIMI_K3 section 2: the second makes the junction, the third finds it."""
    shared = ids(1, 1500)
    cached = []
    for i in range(4):
        _, last = await collect(engine, request(f"sib{i}", shared + ids(100 + i, 300), max_tokens=4))
        cached.append(last.usage.cached_tokens)
    block = max(group.block_tokens for group in engine.info.cache_groups)
    assert cached[:2] == [0, 0]
    assert cached[2] == cached[3] == 1500 // block * block


async def test_state_groups_list_only_checkpoints_that_stand_in_the_attention_chain(engine):
    subscription = engine.kv_events()
    prompt = ids(2, 1300)
    for i in range(2):
        _, last = await collect(engine, request(f"chain{i}", prompt, max_tokens=4))
    kinds = {group.group: group.kind for group in engine.info.cache_groups}
    states = [group for group, kind in kinds.items() if kind is GroupKind.STATE]
    await wait_until(lambda: all(engine.stats().resident_blocks.get(group) for group in states))
    events = []
    while True:
        try:
            events += (await asyncio.wait_for(anext(subscription), 0.5)).events
        except TimeoutError:
            break
    depth_of: dict[int, int] = {}
    state_hashes: dict[int, set[int]] = {}
    for event in events:
        if not isinstance(event, BlockStored):
            continue
        assert event.kind is kinds[event.group]
        if event.kind is GroupKind.ATTENTION:
            assert len(unpack_ids(event.token_ids)) == len(event.hashes) * event.block_tokens
            start = 0 if event.parent is None else depth_of[event.parent]
            for n, block_hash in enumerate(event.hashes, 1):
                depth_of[block_hash] = start + n * event.block_tokens
        else:
            assert event.token_ids == b""
            state_hashes.setdefault(event.group, set()).update(event.hashes)
    assert set(state_hashes) == set(states)
    for hashes in state_hashes.values():
        assert hashes <= set(depth_of), "a state's depth is its hash's depth in the attention group"
        assert len(hashes) < len(depth_of), "far fewer checkpoints than blocks"
    deepest = max(depth_of[block_hash] for block_hash in set.intersection(*state_hashes.values()))
    assert last.usage.cached_tokens == deepest, "the hit is where every group has something"


async def test_the_engines_span_joins_the_requests_trace(engine, span_sink):
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    carrier = {"traceparent": f"00-{trace_id}-{span_id}-01"}
    await collect(engine, request("traced-request", ids(3, 20), trace=carrier))
    await wait_until(lambda: any(span.trace_id.hex() == trace_id for span in span_sink.spans), 20)
    span = next(span for span in span_sink.spans if span.trace_id.hex() == trace_id)
    attributes = {attribute.key: attribute.value for attribute in span.attributes}
    assert span.parent_span_id.hex() == span_id
    assert attributes["gen_ai.request.id"].string_value == "traced-request"
