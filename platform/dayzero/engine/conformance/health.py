"""G11: health is token progress."""

import asyncio
import time

from dayzero.engine.conformance.bench import Bench, Hook, collect, error_of, eventually
from dayzero.engine.conformance.registry import check
from dayzero.engine.errors import EngineDeadError
from dayzero.engine.protocol import Health

_DETECTION_S = 5.0


@check("G11")
async def idle_is_healthy(bench: Bench) -> None:
    """`health` is OK while idle."""
    await bench.until_idle()
    health = await bench.engine.health()
    assert health.ok, f"an idle engine says: {health.reason}"


@check("G11")
async def a_long_prefill_is_healthy(bench: Bench) -> None:
    """`health` is OK during a long prefill."""
    tokens = min(bench.engine.info.max_model_tokens - 9, max(1500, 2 * bench.block_tokens))
    task = asyncio.create_task(bench.run(bench.request(bench.prompt(tokens), max_tokens=2)))
    try:
        while not task.done():
            health = await bench.engine.health()
            assert health.ok, f"during a prefill of {tokens} tokens: {health.reason}"
            await asyncio.wait([task], timeout=0.05)
    finally:
        await task


@check("G11", ends_engine=True, needs=("freeze",))
async def a_frozen_engine_is_found(bench: Bench) -> None:
    """`health` is not OK within 5 s of the engine being frozen; all its requests raise EngineDeadError."""
    await _found_while_running(bench, bench.freeze, "frozen")


@check("G11", ends_engine=True, needs=("kill",))
async def a_killed_engine_is_found(bench: Bench) -> None:
    """`health` is not OK within 5 s of the engine being killed; all its requests raise EngineDeadError."""
    await _found_while_running(bench, bench.kill, "killed")


@check("G11", ends_engine=True, needs=("kill",))
async def an_engine_killed_idle_is_found(bench: Bench) -> None:
    """`health` is not OK within 5 s of an idle engine being killed."""
    await bench.run(bench.request(bench.short_prompt(), max_tokens=2))
    await bench.until_idle()
    await bench.call(bench.kill)
    await _unhealthy_in_time(bench, time.monotonic(), "killed while idle")
    await _refuses(bench, "killed")


async def _found_while_running(bench: Bench, hook: Hook | None, done: str) -> None:
    engine = bench.engine
    room = engine.info.max_model_tokens
    tasks = []
    for _ in range(3):
        prompt = bench.short_prompt()
        request = bench.request(prompt, max_tokens=min(4096, room - len(prompt) - 1))
        tasks.append(asyncio.create_task(error_of(engine.generate(request), bench.patience_s)))
    assert await eventually(lambda: engine.stats().generated_tokens_total > 0, 20), "no token before the hook"
    await bench.call(hook)
    since_s = time.monotonic()
    late = asyncio.create_task(
        error_of(engine.generate(bench.request(bench.short_prompt())), bench.patience_s)
    )
    await _unhealthy_in_time(bench, since_s, done)
    for task in (*tasks, late):
        async with asyncio.timeout(_DETECTION_S):
            error = await task
        assert isinstance(error, EngineDeadError), f"a request of a {done} engine ended with {error!r}"
        assert error.retryable
    await _refuses(bench, done)


async def _unhealthy_in_time(bench: Bench, since_s: float, done: str) -> None:
    health = Health(ok=True, reason="")
    while time.monotonic() - since_s < _DETECTION_S:
        health = await asyncio.wait_for(bench.engine.health(), _DETECTION_S)
        if not health.ok:
            assert health.reason, "health is not OK and gives no reason"
            return
        await asyncio.sleep(0.05)
    assert not health.ok, f"health was still OK {_DETECTION_S:g} s after the engine was {done}"


async def _refuses(bench: Bench, done: str) -> None:
    try:
        async with asyncio.timeout(2):
            await collect(bench.engine.generate(bench.request(bench.short_prompt())))
    except EngineDeadError:
        return
    raise AssertionError(f"a {done} engine took a new request")
