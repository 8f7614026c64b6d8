"""What a region far away costs: the first chunk and the gaps between chunks, asked directly and over an edge here.

- Both ways are asked in turn, on connections that are open. "In a row" keeps them busy; "rested" leaves them alone
  for REST_S, after which TCP begins slowly again.
- Round trips are counted by what the line adds: (first chunk with the delay - without it) / the round trip.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from dayzero.serving.local.folders import FleetFolder
from overhead import edge, far_region, wan
from overhead.client import Connection, Target
from overhead.plain import PACED_MODEL
from overhead.prompts import Prompts
from overhead.systems import MODEL, PATH

EDGE_PORT = 18_500
REST_S = 1.5
SETTLE_S = 5.0
"""For the edge to have measured its round trip anew, over warm connections."""
PACED_TOKENS = 65
WARM = 3
DIRECT, OVER_EDGE = "direct", "over the edge"
IN_A_ROW, RESTED = "in a row", "rested"
KERNEL = "as the kernel has it"


@dataclass(frozen=True, slots=True)
class FarPlan:
    requests: int
    """Of each kind."""
    paced_requests: int


@dataclass(slots=True)
class Far:
    """One round trip (and one TCP setting). First chunks by (tokens, how, way), gaps by way; seconds."""

    round_trip_s: float
    setting: str = KERNEL
    first_s: dict[str, list[float]] = field(default_factory=dict)
    gaps_s: dict[str, list[float]] = field(default_factory=dict)


@contextmanager
def running(scratch: Path) -> Iterator[tuple[wan.Wan, dict[str, Target], FleetFolder]]:
    """The line, the ways to the region, and its run folder. This process is then at the near end of the line."""
    with wan.running() as line, far_region.running(line, scratch) as run:
        line.enter(wan.NEAR)
        key = run.client_key.read_text().strip()
        with edge.running(run, far_region.fleet(), EDGE_PORT):
            yield (
                line,
                {
                    DIRECT: Target(far_region.PORT, PATH, key, host=wan.FAR),
                    OVER_EDGE: Target(EDGE_PORT, PATH, key),
                },
                run,
            )


async def measure(
    line: wan.Wan,
    ways: dict[str, Target],
    prompts: Sequence[Prompts],
    plan: FarPlan,
    round_trip_s: float,
    *,
    say: Callable[[str], None],
) -> list[Far]:
    """Without delay, with it, and with it under two settings of the hosts' TCP; of those the rested ones only."""
    found = []
    for delay_s in (0.0, round_trip_s):
        say(f"a round trip of {delay_s * 1e3:g} ms")
        line.set_round_trip(delay_s)
        far = Far(delay_s)
        await _first_chunks(far, ways, prompts, plan, in_a_row=True)
        for way, target in ways.items():
            far.gaps_s[way] = await _gaps(target, prompts[0], plan)
        found.append(far)
    for name, setting, undo in (
        (
            "tcp_slow_start_after_idle = 0",
            lambda: line.set("tcp_slow_start_after_idle", "0"),
            lambda: line.set("tcp_slow_start_after_idle", "1"),
        ),
        ("initcwnd 64", lambda: line.set_first_window(64), lambda: line.set_first_window(10)),
    ):
        say(f"a round trip of {round_trip_s * 1e3:g} ms, {name}")
        setting()
        far = Far(round_trip_s, name)
        await _first_chunks(far, ways, prompts, plan, in_a_row=False)
        found.append(far)
        undo()
    return found


def key(tokens: int, how: str, way: str) -> str:
    return f"{tokens:,} tokens, {how}, {way}"


async def _first_chunks(
    far: Far, ways: dict[str, Target], prompts: Sequence[Prompts], plan: FarPlan, *, in_a_row: bool
) -> None:
    await asyncio.sleep(SETTLE_S)
    connections = {
        (supply.tokens, way): Connection(target) for supply in prompts for way, target in ways.items()
    }

    async def ask(how: str | None) -> None:
        for supply in prompts:
            for way in ways:
                answer = await connections[supply.tokens, way].ask(supply.body(MODEL, 1))
                if how is not None:
                    far.first_s.setdefault(key(supply.tokens, how, way), []).append(answer.first_s)

    for _ in range(WARM):
        await ask(None)
    for _ in range(plan.requests):
        await asyncio.sleep(REST_S)
        await ask(RESTED)
    for supply in prompts if in_a_row else ():
        for number in range(WARM + plan.requests):
            for way in ways:
                answer = await connections[supply.tokens, way].ask(supply.body(MODEL, 1))
                if number >= WARM:
                    far.first_s.setdefault(key(supply.tokens, IN_A_ROW, way), []).append(answer.first_s)
    for connection in connections.values():
        connection.close()


async def _gaps(target: Target, prompts: Prompts, plan: FarPlan) -> list[float]:
    """Between the chunks of answers at a pace at which every token is a chunk."""
    connection = Connection(target)
    gaps: list[float] = []
    for _ in range(plan.paced_requests):
        times = (await connection.ask(prompts.body(PACED_MODEL, PACED_TOKENS))).chunks_s
        gaps += [after - before for before, after in pairwise(times)]
    connection.close()
    return gaps
