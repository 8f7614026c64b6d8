"""The conformance kit on real vLLM with a tiny random Llama."""

import asyncio
import os
import signal
import time
import warnings
from multiprocessing import resource_tracker

import psutil
import pytest
import pytest_asyncio

from dayzero.engine.conformance import ENDING_CHECKS, SHARED_CHECKS, Bench
from dayzero.engine.errors import EngineDeadError
from tests.engine.vllm_support import (
    VOCABULARY,
    children,
    collect,
    needs_vllm,
    request,
    run_dir,
    started,
    tiny_config,
    wait_until,
    write_tiny_llama,
)

pytestmark = [*needs_vllm, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_engine(model):
    async with run_dir() as run, started(tiny_config(model, run)) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def fresh_engine(model):
    async with run_dir() as run, started(tiny_config(model, run)) as engine:
        yield engine


def signal_all(number):
    def send(engine):
        for pid in engine.process_ids:
            os.kill(pid, number)

    return send


def bench_of(engine) -> Bench:
    return Bench(
        engine=engine,
        vocabulary=VOCABULARY,
        freeze=signal_all(signal.SIGSTOP),
        kill=signal_all(signal.SIGKILL),
        patience_s=120,
    )


@pytest.mark.parametrize("check", SHARED_CHECKS, ids=str)
async def test_a_guarantee_holds(check, shared_engine):
    await check.run(bench_of(shared_engine))


@pytest.mark.parametrize("check", ENDING_CHECKS, ids=str)
async def test_a_guarantee_about_the_end_holds(check, fresh_engine):
    bench = bench_of(fresh_engine)
    before = children() - set(fresh_engine.process_ids)
    bench.leftovers = lambda _: [
        f"{psutil.Process(pid).name()} ({pid})" for pid in children() - before if psutil.pid_exists(pid)
    ]
    await check.run(bench)


async def test_an_engine_frozen_while_idle_is_found_killed_and_named(fresh_engine):
    await collect(fresh_engine, request("warm", range(10, 20)))
    pids = fresh_engine.process_ids
    signal_all(signal.SIGSTOP)(fresh_engine)
    began_s = time.monotonic()
    while (health := await fresh_engine.health()).ok:
        assert time.monotonic() - began_s < 5, "still OK five seconds after SIGSTOP"
        await asyncio.sleep(0.05)
    assert "EngineCore" in health.reason
    assert "stopped" in health.reason
    with pytest.raises(EngineDeadError, match="stopped"):
        await collect(fresh_engine, request("late", range(10, 20)))
    await wait_until(lambda: not children() & set(pids))  # it must not wake up later and work for nobody


async def test_a_slow_reader_gets_every_id_and_its_logprob_once(shared_engine):
    what = {"max_tokens": 40, "logprobs": 1}
    prompt = range(100, 120)
    quick, _ = await collect(shared_engine, request("quick", prompt, **what))
    ids, logprobs = [], []
    async for delta in shared_engine.generate(request("slow", prompt, **what)):
        ids += delta.token_ids
        logprobs += [entry.token_id for entry in delta.logprobs or ()]
        await asyncio.sleep(0.02)
    assert ids == quick
    assert logprobs == ids
    assert len(set(ids)) > 5, "the model must not repeat one token, or this proves little"


async def test_stopping_an_engine_leaves_pythons_own_helper_alone(fresh_engine):
    """The tracker serves the whole process: were it ended with an engine, the next start would warn."""
    before = resource_tracker._resource_tracker._pid
    await fresh_engine.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resource_tracker.ensure_running()
    assert resource_tracker._resource_tracker._pid == before is not None
