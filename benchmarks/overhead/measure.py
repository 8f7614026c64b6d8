"""The measurement: rounds in which every system is asked the same things, in an order that changes each round.

One round of one system gives a `Cell`. CPU is what its processes ran, less what they run when idle; the client's
is not in it.
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from overhead import cpu
from overhead.breakdown import WARM, Here, Steps, breakdown
from overhead.client import Answer, at_once, for_a_while, in_turn
from overhead.plain import PACED_MODEL
from overhead.prompts import Prompts
from overhead.systems import MODEL, System

ANSWER_TOKENS = 64
MANY_CLIENTS = 32
PACED_CLIENTS = 4
WARM_LONG = 4
"""Long requests before those that count."""


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    seconds: float
    """Of each throughput phase."""
    short_requests: int = 40
    long_requests: int = 20
    paced_requests: int = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """One system in one round. CPU in seconds, by part of the system."""

    first_short_s: tuple[float, ...]
    first_long_s: tuple[float, ...]
    cpu_short: Mapping[str, float]
    """Of one request of 200 prompt tokens and one answer token."""
    cpu_long: Mapping[str, float]
    cpu_chunk: Mapping[str, float]
    """Of one streamed chunk, at a pace at which every token is a chunk."""
    one_per_s: float
    many_per_s: float
    cpu_many: Mapping[str, float]
    """Of one request of 200 tokens and 64 answer tokens, many at once."""
    chunks_many: float
    """Chunks of one such request."""
    idle: Mapping[str, float]
    """CPU seconds in each second without requests."""


@dataclass(slots=True)
class Result:
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)
    """The machine's one-minute load average before each round."""
    steps: Steps = field(default_factory=Steps)
    """Of one request in this process, 12,000 prompt tokens."""


def long_texts(plan: Plan, systems: int) -> int:
    """How many long prompts a run takes when nobody is asked the same text again."""
    asked = systems * (WARM_LONG + plan.long_requests)
    here = WARM + 2 * plan.long_requests
    return plan.rounds * (asked + here)


async def measure(
    systems: Sequence[System],
    here: Here,
    short: Prompts,
    long: Prompts,
    plan: Plan,
    *,
    say: Callable[[str], None],
) -> Result:
    result = Result({system.name: [] for system in systems})
    dice = random.Random(7)
    for number in range(plan.rounds):
        result.load.append(os.getloadavg()[0])
        say(f"round {number + 1} of {plan.rounds}, load {result.load[-1]:.1f}")
        for system in dice.sample(list(systems), len(systems)):
            result.cells[system.name].append(await _cell(system, short, long, plan))
        await breakdown(here, long, result.steps, plan.long_requests)
    return result


async def _cell(system: System, short: Prompts, long: Prompts, plan: Plan) -> Cell:
    target, processes = system.target, system.processes()
    before, began_s = processes.sample(), time.perf_counter()
    await asyncio.sleep(0.7)
    idle = _scaled(cpu.spent(before, processes.sample()), 1 / (time.perf_counter() - began_s))

    async def counted(work: Awaitable[list[Answer]]) -> tuple[list[Answer], dict[str, float]]:
        """The answers, and the CPU of one request."""
        before, began_s = processes.sample(), time.perf_counter()
        answers = await work
        took_s = time.perf_counter() - began_s
        spent = cpu.spent(before, processes.sample())
        return answers, {name: (s - idle[name] * took_s) / len(answers) for name, s in spent.items()}

    # It did nothing while the others were asked: caches are cold and connections closed.
    await at_once(target, MANY_CLIENTS, 2, lambda: short.body(MODEL, ANSWER_TOKENS))
    await in_turn(target, [long.body(MODEL, 1) for _ in range(WARM_LONG)])
    await at_once(target, PACED_CLIENTS, 1, lambda: short.body(PACED_MODEL, ANSWER_TOKENS))

    shorts, cpu_short = await counted(
        in_turn(target, [short.body(MODEL, 1) for _ in range(plan.short_requests)])
    )
    longs, cpu_long = await counted(in_turn(target, [long.body(MODEL, 1) for _ in range(plan.long_requests)]))

    async def paced(tokens: int) -> tuple[list[Answer], dict[str, float]]:
        return await counted(
            at_once(target, PACED_CLIENTS, plan.paced_requests, lambda: short.body(PACED_MODEL, tokens))
        )

    few, cpu_few = await paced(1)
    lots, cpu_lots = await paced(1 + ANSWER_TOKENS)
    chunks = _mean_frames(lots) - _mean_frames(few)

    ones, one_s = await for_a_while(target, 1, plan.seconds, lambda: short.body(MODEL, ANSWER_TOKENS))
    many_s = 0.0

    async def crowd() -> list[Answer]:
        nonlocal many_s
        answers, many_s = await for_a_while(
            target, MANY_CLIENTS, plan.seconds, lambda: short.body(MODEL, ANSWER_TOKENS)
        )
        return answers

    manys, cpu_many = await counted(crowd())
    return Cell(
        first_short_s=tuple(answer.first_s for answer in shorts),
        first_long_s=tuple(answer.first_s for answer in longs),
        cpu_short=cpu_short,
        cpu_long=cpu_long,
        cpu_chunk={name: (cpu_lots[name] - cpu_few[name]) / chunks for name in cpu_lots},
        one_per_s=len(ones) / one_s,
        many_per_s=len(manys) / many_s,
        cpu_many=cpu_many,
        chunks_many=_mean_frames(manys),
        idle=idle,
    )


def _mean_frames(answers: Sequence[Answer]) -> float:
    return sum(answer.frames for answer in answers) / len(answers)


def _scaled(values: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: value * factor for name, value in values.items()}
