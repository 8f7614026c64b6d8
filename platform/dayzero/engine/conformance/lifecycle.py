"""G6, G7 and G13: requests that are aborted, refused, or run beside one another."""

import asyncio
import time

from dayzero.engine.conformance.bench import Bench, Outcome, close, collect, error_of, eventually, settle
from dayzero.engine.conformance.registry import check
from dayzero.engine.errors import ContextLengthError
from dayzero.engine.types import EngineRequest, Finish, TokenIds

# Once an abort returned, at most the step that was running may still count its tokens.
_SETTLE_S = 0.3
_LONG_OUTPUT_TOKENS = 4096


def _long(bench: Bench) -> EngineRequest:
    """A request that will not end by itself while a check looks at it."""
    prompt = bench.short_prompt()
    room = bench.engine.info.max_model_tokens - len(prompt) - 1
    return bench.request(prompt, max_tokens=min(room, _LONG_OUTPUT_TOKENS))


async def _nothing_more_is_generated(bench: Bench) -> None:
    await bench.until_idle()
    await asyncio.sleep(_SETTLE_S)
    before = bench.engine.stats().generated_tokens_total
    await asyncio.sleep(_SETTLE_S)
    grown = bench.engine.stats().generated_tokens_total - before
    assert grown == 0, f"{grown} tokens were generated after the end"


@check("G6")
async def closing_the_iterator_ends_the_work(bench: Bench) -> None:
    """Closing the iterator ends the work within the running step; nothing is generated after it."""
    deltas = bench.engine.generate(_long(bench))
    await anext(deltas)
    await close(deltas)
    await _nothing_more_is_generated(bench)


@check("G6")
async def cancelling_the_reader_ends_the_work(bench: Bench) -> None:
    """A reader cancelled while it waits for a delta leaves nothing running."""
    task = asyncio.create_task(collect(bench.engine.generate(_long(bench))))
    assert await eventually(lambda: bench.engine.stats().running > 0, 10), "the request never ran"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await _nothing_more_is_generated(bench)


@check("G6")
async def abort_ends_with_finish_abort(bench: Bench) -> None:
    """`abort(request_id)` ends the work, and the iterator ends with finish ABORT."""
    request = _long(bench)
    deltas = bench.engine.generate(request)
    first = await anext(deltas)
    await bench.engine.abort(request.request_id)
    async with asyncio.timeout(5):
        rest = await collect(deltas)
    assert rest.finish is Finish.ABORT, f"an aborted request finished with {rest.finish.value}"
    delivered = len(first.token_ids) + len(rest.ids)
    assert rest.usage.completion_tokens == delivered, (
        f"usage counts {rest.usage.completion_tokens} of the {delivered} ids delivered before the abort"
    )
    await _nothing_more_is_generated(bench)


@check("G6")
async def abort_of_a_request_without_tokens(bench: Bench) -> None:
    """A request aborted as soon as it was sent ends with finish ABORT too."""
    request = _long(bench)
    task = asyncio.create_task(collect(bench.engine.generate(request)))
    await eventually(lambda: bench.engine.stats().running + bench.engine.stats().waiting > 0, 5)
    await bench.engine.abort(request.request_id)
    async with asyncio.timeout(5):
        outcome = await task
    assert outcome.finish is Finish.ABORT, f"an aborted request finished with {outcome.finish.value}"
    await _nothing_more_is_generated(bench)


@check("G6")
async def aborting_nothing_does_nothing(bench: Bench) -> None:
    """Aborting an unknown or finished request does nothing."""
    request = bench.request(bench.short_prompt(), max_tokens=2)
    outcome = await bench.run(request)
    await bench.engine.abort(request.request_id)
    await bench.engine.abort("conformance-never-sent")
    assert outcome.finish is Finish.LENGTH
    after = await bench.run(bench.request(bench.short_prompt(), max_tokens=2))
    assert after.finish is Finish.LENGTH, "the engine served no request after idle aborts"


@check("G7")
async def a_prompt_without_room_is_refused(bench: Bench) -> None:
    """A prompt that leaves no room raises ContextLengthError before any work, and harms no other."""
    room = bench.engine.info.max_model_tokens
    reference = bench.short_prompt()
    expected = await bench.run(bench.request(reference, max_tokens=12))
    totals = bench.engine.stats().prompt_tokens_total
    running = asyncio.create_task(bench.run(bench.request(reference, max_tokens=12)))
    for tokens in (room, room + 1):
        error = await error_of(bench.engine.generate(bench.request(bench.prompt(tokens))))
        assert isinstance(error, ContextLengthError), (
            f"{tokens} prompt tokens in a context of {room} gave {error!r}, not ContextLengthError"
        )
        assert error.status == 400
    beside = await running
    assert len(beside.ids) == len(expected.ids), "a refused request changed a running one"
    assert bench.engine.stats().prompt_tokens_total - totals <= len(reference), "a refused prompt was counted"
    await bench.until_idle()


@check("G7")
async def the_context_ends_the_output(bench: Bench) -> None:
    """A prompt that leaves little room ends with LENGTH at the context's end."""
    room = bench.engine.info.max_model_tokens
    if room > 2048:
        return  # too long a prompt for a real engine on a CPU
    outcome = await bench.run(bench.request(bench.prompt(room - 3), max_tokens=20))
    assert outcome.finish is Finish.LENGTH, f"the finish at the context's end is {outcome.finish.value}"
    assert 2 <= len(outcome.ids) <= 4, f"{len(outcome.ids)} ids came where 3 fit"


@check("G7")
async def a_past_deadline_is_not_started(bench: Bench) -> None:
    """A request whose deadline has passed is not started: an EngineError, or ABORT without ids."""
    before = bench.engine.stats()
    late = bench.request(bench.short_prompt(), max_tokens=8, deadline_s=time.time() - 1)
    outcome, error = await settle(bench.engine.generate(late))
    if outcome is None:
        assert getattr(error, "status", None) in {408, 503, 504}, f"a past deadline raised {error!r}"
    else:
        assert outcome.finish is Finish.ABORT, f"a past deadline finished with {outcome.finish.value}"
        assert not outcome.ids, "tokens were generated after the deadline"
    await bench.until_idle()
    assert bench.engine.stats().generated_tokens_total == before.generated_tokens_total, "work was done"


@check("G13")
async def requests_run_concurrently(bench: Bench) -> None:
    """Requests run concurrently; counts in `stats` return to zero when they end."""
    await bench.until_idle()
    before = bench.engine.stats()
    prompts = [bench.short_prompt() for _ in range(6)]
    most_running = 0

    async def watched(prompt: TokenIds) -> Outcome:
        nonlocal most_running
        deltas = []
        async for delta in bench.engine.generate(bench.request(prompt, max_tokens=40)):
            most_running = max(most_running, bench.engine.stats().running)
            deltas.append(delta)
        return Outcome.of(deltas)

    outcomes = await asyncio.gather(*map(watched, prompts))
    assert most_running >= 2, "never two requests at once"
    assert [len(outcome.ids) for outcome in outcomes] == [40] * 6, "a concurrent request lost or gained ids"
    await bench.until_idle()
    await eventually(lambda: bench.engine.stats().kv_usage == 0, 2)
    after = bench.engine.stats()
    assert after.running_prompt_tokens == 0, "prompt tokens are still counted as backlog"
    assert after.kv_usage == 0, f"{after.kv_usage:.3f} of the cache is still in use by nobody"
    assert after.requests_total - before.requests_total == 6, (
        "requests_total did not grow by the six requests"
    )
    assert after.generated_tokens_total - before.generated_tokens_total == 240, (
        "generated tokens were miscounted"
    )
    grown = after.prompt_tokens_total - before.prompt_tokens_total
    assert grown == sum(map(len, prompts)), "prompt tokens were miscounted"
    assert after.last_token_s is not None, "progress was made at no time"
    assert abs(after.last_token_s - time.time()) < 60, "the last progress is not on the Unix clock"
