"""Building AsyncLLM and taking it down, each in a thread: both block for seconds.

- vLLM reads the folder of its sockets from the environment: one engine is built at a time in a process.
- EngineCore is a child of this process; `core_pids` are its ids while vLLM manages it.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

from dayzero.engine.errors import EngineStartError
from dayzero.serving.engines.vllm_config import VLLMConfig, engine_args
from dayzero.serving.engines.vllm_guard import MARK
from dayzero.serving.engines.vllm_stats import Tally, stat_logger_factory

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_REASON_CHARACTERS = 500
_building = threading.Lock()


def events_endpoint(sockets: Path) -> str:
    return f"ipc://{sockets / 'kv'}"


def replay_endpoint(sockets: Path) -> str:
    return f"ipc://{sockets / 'replay'}"


async def build_in_thread(config: VLLMConfig, sockets: Path, tally: Tally) -> "AsyncLLM":
    """`build` off the event loop.

    vllm is imported in a job of its own: its modules keep tracebacks of optional imports that failed, and with
    them the frames of the job, whose result would live until the process ends.
    """
    try:
        await asyncio.to_thread(import_module, "vllm.v1.engine.async_llm")
    except ImportError as e:
        raise EngineStartError(f"vllm cannot be imported ({e}): install the engine's requirements") from e
    return await asyncio.to_thread(build, config, sockets, tally)


def build(config: VLLMConfig, sockets: Path, tally: Tally) -> "AsyncLLM":
    """Start EngineCore and load the model; blocks until it serves. Raises EngineStartError."""
    try:
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        arguments = engine_args(
            config, events_endpoint=events_endpoint(sockets), replay_endpoint=replay_endpoint(sockets)
        )
        # spawn: a fork would copy our threads' locks and the guard's pipe.
        variables = {MARK: str(sockets), "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        # Python's tracker of shared resources serves this whole process: started later, it would carry the mark
        # and be ended with the engine.
        resource_tracker.ensure_running()
        with _building, _environment(variables):
            return AsyncLLM.from_engine_args(arguments, stat_loggers=[stat_logger_factory(tally)])
    except EngineStartError:
        raise
    except Exception as e:
        said = " ".join(str(e).split())[:_REASON_CHARACTERS] or type(e).__name__
        raise EngineStartError(
            f"vLLM did not start with {config.model} (its log above has the root cause): {said}"
        ) from e


async def take_down(llm: "AsyncLLM", grace_s: float) -> None:
    """End vLLM's task here, then EngineCore (SIGTERM, after `grace_s` SIGKILL). May be called twice.

    The task first: it would log the end of EngineCore as a failure.
    """
    if llm.output_handler is not None:
        llm.output_handler.cancel()
        await asyncio.gather(llm.output_handler, return_exceptions=True)
    await asyncio.to_thread(llm.shutdown, timeout=grace_s)


def core_pids(llm: "AsyncLLM") -> list[int]:
    return [process.pid for process in llm.engine_core.resources.engine_manager.processes]


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
