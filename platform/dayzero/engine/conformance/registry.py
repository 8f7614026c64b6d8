"""Check: one runnable statement about one guarantee, and the register they enter as their modules load."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dayzero.engine.conformance.bench import Bench

CheckBody = Callable[[Bench], Awaitable[None]]


class ConformanceError(AssertionError):
    """The engine broke a guarantee; the sentence names it."""


@dataclass(frozen=True, slots=True)
class Check:
    """`ends_engine`: wants a fresh engine and leaves it unusable. `needs`: the hooks of the bench it calls."""

    guarantee: str
    name: str
    sentence: str
    body: CheckBody
    ends_engine: bool
    needs: frozenset[str]

    def __str__(self) -> str:
        return f"{self.guarantee}-{self.name}"

    async def run(self, bench: Bench) -> None:
        """Raises ConformanceError; errors the engine should not have raised pass through."""
        missing = [hook for hook in sorted(self.needs) if getattr(bench, hook) is None]
        if missing:
            raise ConformanceError(
                f"{self}: the bench has no hook {', '.join(missing)}; give it or skip the check"
            )
        try:
            async with asyncio.timeout(bench.patience_s):
                await self.body(bench)
        except TimeoutError as e:
            raise ConformanceError(f"{self}: not done within {bench.patience_s:g} s: {self.sentence}") from e
        except AssertionError as e:
            raise ConformanceError(f"{self}: {e} ({self.sentence})") from e


_registered: dict[str, list[Check]] = defaultdict(list)


def check(
    guarantee: str, *, ends_engine: bool = False, needs: tuple[str, ...] = ()
) -> Callable[[CheckBody], CheckBody]:
    """Enter a check; its name is the function's, its sentence the first line of the docstring."""

    def enter(body: CheckBody) -> CheckBody:
        name = getattr(body, "__name__", "check")
        sentence = (body.__doc__ or name).strip().splitlines()[0]
        _registered[body.__module__].append(
            Check(guarantee, name, sentence, body, ends_engine, frozenset(needs))
        )
        return body

    return enter


def registered(module: str) -> tuple[Check, ...]:
    return tuple(_registered[module])
