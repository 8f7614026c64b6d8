"""Bench: one started engine, what the checks may do to it, and the few tools they share."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dayzero.engine.protocol import Engine
from dayzero.engine.types import (
    EngineRequest,
    EngineTimes,
    Finish,
    Sampling,
    TokenDelta,
    TokenIds,
    TokenLogprob,
    Usage,
    pack_ids,
)

Hook = Callable[[Engine], Awaitable[None] | None]

_prompt_numbers = itertools.count(1)
_request_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request's deltas, joined."""

    ids: tuple[int, ...]
    deltas: tuple[TokenDelta, ...]

    @classmethod
    def of(cls, deltas: Iterable[TokenDelta]) -> "Outcome":
        gathered = tuple(deltas)
        return cls(tuple(itertools.chain.from_iterable(delta.token_ids for delta in gathered)), gathered)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        return tuple(delta.finish for delta in self.deltas if delta.finish is not None)

    @property
    def finish(self) -> Finish:
        assert len(self.finishes) == 1, f"{len(self.finishes)} deltas carried a finish, not one"
        return self.finishes[0]

    @property
    def usage(self) -> Usage:
        usage = self.deltas[-1].usage
        assert usage is not None, "the last delta carried no usage"
        return usage

    @property
    def times(self) -> EngineTimes:
        times = self.deltas[-1].times
        assert times is not None, "the last delta carried no times"
        return times

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return tuple(itertools.chain.from_iterable(delta.logprobs or () for delta in self.deltas))


@dataclass(slots=True, kw_only=True)
class Bench:
    """`vocabulary`: ids a prompt may hold. Hooks may be plain functions or coroutines.

    `freeze`: stop the engine's progress without ending it (SIGSTOP). `kill`: end it at once (SIGKILL).
    `leftovers`: names of what still lives of a stopped engine: processes, threads, tasks.
    `patience_s`: how long one check may take.
    """

    engine: Engine
    vocabulary: range
    freeze: Hook | None = None
    kill: Hook | None = None
    leftovers: Callable[[Engine], Sequence[str]] | None = None
    patience_s: float = 60.0

    @property
    def unit_tokens(self) -> int:
        return self.engine.info.match_unit_tokens

    @property
    def block_tokens(self) -> int:
        """The coarsest block of any group: no hit need be finer."""
        return max(group.block_tokens for group in self.engine.info.cache_groups)

    def prompt(self, tokens: int) -> TokenIds:
        """Ids nobody has sent before: no cached block begins like them."""
        generator = np.random.default_rng(next(_prompt_numbers))
        low, high = self.vocabulary.start, self.vocabulary.stop
        return generator.integers(low, high, size=tokens, dtype=np.uint32)

    def short_prompt(self) -> TokenIds:
        """Shorter than a unit: never cached, so a repeat runs as the first did."""
        return self.prompt(max(2, min(self.unit_tokens - 1, 24)))

    def cacheable_prompt(self) -> TokenIds:
        """Two whole blocks and a bit."""
        tokens = max(2 * self.block_tokens + self.block_tokens // 4 + 1, 40)
        assert tokens + 16 <= self.engine.info.max_model_tokens, (
            f"the kit needs room for two blocks of {self.block_tokens} tokens: start with a larger max_model_tokens"
        )
        return self.prompt(tokens)

    def request(
        self,
        prompt: TokenIds,
        *,
        max_tokens: int = 8,
        ignore_eos: bool = True,
        salt: str = "",
        deadline_s: float | None = None,
        min_tokens: int = 0,
        stop_token_ids: tuple[int, ...] = (),
        logprobs: int | None = None,
        temperature: float = 0.0,
    ) -> EngineRequest:
        sampling = Sampling(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=temperature,
            seed=7,
            ignore_eos=ignore_eos,
            stop_token_ids=stop_token_ids,
            logprobs=logprobs,
        )
        return EngineRequest(
            request_id=f"conformance-{next(_request_numbers)}",
            prompt_ids=pack_ids(prompt),
            sampling=sampling,
            salt=salt,
            deadline_s=deadline_s,
        )

    async def run(self, request: EngineRequest) -> Outcome:
        return await collect(self.engine.generate(request))

    async def until_idle(self, patience_s: float = 2.0) -> None:
        """Counts follow the last delta by a step at most; wait that long and no longer."""
        idle = await eventually(
            lambda: self.engine.stats().running + self.engine.stats().waiting == 0, patience_s
        )
        stats = self.engine.stats()
        assert idle, f"stats still count {stats.running} running and {stats.waiting} waiting requests"

    async def call(self, hook: Hook | None) -> None:
        assert hook is not None
        result = hook(self.engine)
        if result is not None:
            await result


async def collect(deltas: AsyncIterator[TokenDelta]) -> Outcome:
    return Outcome.of([delta async for delta in deltas])


async def close(deltas: AsyncIterator[TokenDelta]) -> None:
    """Close an iterator as a caller that leaves would."""
    aclose = getattr(deltas, "aclose", None)
    assert aclose is not None, "the iterator of `generate` has no aclose(), so nobody can close it"
    await aclose()


async def eventually(condition: Callable[[], bool], patience_s: float) -> bool:
    """Poll a condition of the engine's snapshot, which has no event to await."""
    end_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        await asyncio.sleep(0.01)
    return True


async def settle(
    deltas: AsyncIterator[TokenDelta], patience_s: float = 10.0
) -> tuple[Outcome, None] | tuple[None, Exception]:
    """How an iterator ends: its outcome, or the error it raised."""
    try:
        async with asyncio.timeout(patience_s):
            return await collect(deltas), None
    except Exception as e:  # noqa: BLE001 - whatever it is, the check judges it
        return None, e


async def error_of(deltas: AsyncIterator[TokenDelta], patience_s: float = 10.0) -> Exception | None:
    """The error an iterator ends with, or None where it ended well."""
    return (await settle(deltas, patience_s))[1]


async def cancelled(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
