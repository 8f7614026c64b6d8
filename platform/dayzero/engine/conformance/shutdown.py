"""G12: drain and stop."""

import asyncio
import time

from dayzero.engine.conformance.bench import Bench, collect, error_of
from dayzero.engine.conformance.registry import check
from dayzero.engine.errors import EngineDrainingError, EngineError
from dayzero.engine.types import Finish


@check("G12", ends_engine=True)
async def drain_finishes_what_runs(bench: Bench) -> None:
    """After `drain` begins new requests are refused; it returns once the running ones ended; then stop, twice."""
    engine = bench.engine
    deltas = engine.generate(bench.request(bench.short_prompt(), max_tokens=40))
    first = await anext(deltas)
    reading = asyncio.create_task(collect(deltas))
    draining = asyncio.create_task(engine.drain(deadline_s=30))
    await asyncio.sleep(0)
    refused = await error_of(engine.generate(bench.request(bench.short_prompt())))
    assert isinstance(refused, EngineDrainingError), f"a draining engine gave {refused!r} to a new request"
    assert refused.retryable
    await draining
    assert engine.stats().running == 0, "drain returned while a request still ran"
    rest = await reading
    delivered = len(first.token_ids) + len(rest.ids)
    assert (rest.finish, delivered) == (Finish.LENGTH, 40), "drain cut a running request short"
    await _stops(bench)


@check("G12", ends_engine=True)
async def drain_returns_at_its_deadline(bench: Bench) -> None:
    """`drain` returns when its deadline passes, and `stop` then ends what still runs."""
    engine = bench.engine
    prompt = bench.short_prompt()
    request = bench.request(prompt, max_tokens=min(4096, engine.info.max_model_tokens - len(prompt) - 1))
    deltas = engine.generate(request)
    await anext(deltas)
    began_s = time.monotonic()
    await engine.drain(deadline_s=0.1)
    took_s = time.monotonic() - began_s
    assert took_s < 2, f"a drain of 0.1 s took {took_s:.1f} s"
    reader = asyncio.create_task(_drop_batches(bench))
    await asyncio.sleep(0)
    await _stops(bench)
    try:
        async with asyncio.timeout(5):
            rest = await collect(deltas)
    except EngineError:
        pass
    else:
        assert rest.finish in (Finish.ABORT, Finish.LENGTH), f"stop ended a request with {rest.finish.value}"
    async with asyncio.timeout(5):
        await reader


async def _drop_batches(bench: Bench) -> None:
    async for _ in bench.engine.kv_events():
        pass


async def _stops(bench: Bench) -> None:
    await bench.engine.stop()
    await bench.engine.stop()
    error = await error_of(bench.engine.generate(bench.request(bench.prompt(8))))
    assert isinstance(error, EngineError), f"a stopped engine gave {error!r} to a new request"
    if bench.leftovers is not None:
        left = list(bench.leftovers(bench.engine))
        assert not left, f"still alive after stop: {', '.join(left)}"
