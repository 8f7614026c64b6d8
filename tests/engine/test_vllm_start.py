"""Starts that fail say why and leave nothing; a folder or argument at fault is found before any work."""

import asyncio

import pytest
import pytest_asyncio

from dayzero.engine.errors import EngineError, EngineStartError
from dayzero.serving.engines.vllm import VLLMEngine
from dayzero.serving.engines.vllm_guard import marked
from tests.engine.vllm_support import (
    LLAMA,
    children,
    collect,
    needs_vllm,
    request,
    run_dir,
    tiny_config,
    wait_until,
    write_config,
    write_tiny_llama,
)


@pytest_asyncio.fixture
async def run():
    async with run_dir() as folder:
        yield folder


async def test_a_folder_without_a_model_is_said_at_once(tmp_path, run):
    engine = VLLMEngine(tiny_config(tmp_path, run))
    with pytest.raises(EngineStartError, match=r"no model in .*config\.json"):
        await engine.start()
    assert not list(run.iterdir())


async def test_a_run_dir_too_long_for_sockets_is_said_at_once(tmp_path, run):
    engine = VLLMEngine(tiny_config(write_config(tmp_path, LLAMA), run / ("x" * 80)))
    with pytest.raises(EngineStartError, match="shorter folder"):
        await engine.start()


async def test_an_engine_that_never_started_answers_for_itself(tmp_path, run):
    engine = VLLMEngine(tiny_config(tmp_path, run))
    assert not (await engine.health()).ok
    assert engine.stats().running == 0
    with pytest.raises(EngineError):
        engine.info  # noqa: B018
    with pytest.raises(EngineError):
        await collect(engine, request("r", [5]))
    await engine.stop()
    with pytest.raises(EngineStartError, match="make a new one"):
        await engine.start()


class TestWithVLLM:
    pytestmark = needs_vllm

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"extra": {"no_such_argument": 1}}, "no_such_argument"),
            ({"max_model_tokens": 10_000_000}, "max_model_len"),
        ],
        ids=["unknown argument", "context beyond the model's"],
    )
    async def test_an_argument_at_fault_is_named(self, tmp_path, run, changes, says):
        engine = VLLMEngine(tiny_config(write_config(tmp_path, LLAMA), run, **changes))
        with pytest.raises(EngineStartError, match=says):
            await engine.start()
        assert not list(run.iterdir())

    async def test_a_core_that_fails_to_load_leaves_nothing_behind(self, tmp_path, run):
        model = write_tiny_llama(tmp_path / "m")
        (model / "model.safetensors").write_bytes(b"not weights at all")
        engine = VLLMEngine(tiny_config(model, run))
        with pytest.raises(EngineStartError, match="did not start"):
            await engine.start()
        assert not children()
        assert not list(run.iterdir())
        assert not (await engine.health()).ok

    async def test_a_start_that_is_cancelled_leaves_nothing_behind(self, tmp_path, run):
        engine = VLLMEngine(tiny_config(write_tiny_llama(tmp_path / "m"), run))
        start = asyncio.create_task(engine.start())
        await wait_until(lambda: any(marked(str(folder)) for folder in run.iterdir()), 300)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not children()
        assert not list(run.iterdir())
