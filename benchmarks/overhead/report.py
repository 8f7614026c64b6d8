"""The tables, in Markdown: medians over the rounds, with the least and the most of them in brackets."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from overhead.breakdown import WHOLE
from overhead.measure import Cell, Result
from overhead.systems import AWAY, DIRECT, EDGE_PART

FLOOR = "uvicorn"


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def path_cpu(parts: Any) -> float:
    """CPU of the processes that a request passes."""
    return sum(seconds for name, seconds in parts.items() if name != "around")


def spread(values: Sequence[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} [{low:,.{digits}f} .. {high:,.{digits}f}]"


def latency(result: Result, pick: Callable[[Cell], Sequence[float]], title: str) -> list[str]:
    """Milliseconds to the first chunk; what is added is the difference to the floor in the same round."""
    floor = {share: [percentile(pick(c), share) for c in result.cells[FLOOR]] for share in (0.5, 0.9)}
    lines = [
        f"| {title} | p50 ms | p90 ms | added p50 ms | added p90 ms |",
        "|---|---|---|---|---|",
    ]
    for name, cells in result.cells.items():
        row = [name]
        own = {share: [percentile(pick(c), share) for c in cells] for share in (0.5, 0.9)}
        row += [spread([s * 1e3 for s in own[share]], 2) for share in own]
        for share, seconds in own.items():
            added = [(a - b) * 1e3 for a, b in zip(seconds, floor[share], strict=True)]
            row.append("" if name == FLOOR else spread(added, 2))
        lines.append(f"| {' | '.join(row)} |")
    return lines


def work(result: Result) -> list[str]:
    lines = [
        "| CPU, throughput | µs/req, 200 tokens | µs/req, 12,000 tokens | µs/chunk | req/s, 1 client | req/s, 32 | µs/req, 32 | chunks/req, 32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, cells in result.cells.items():
        row = [
            name,
            spread([path_cpu(c.cpu_short) * 1e6 for c in cells], 0),
            spread([path_cpu(c.cpu_long) * 1e6 for c in cells], 0),
            spread([path_cpu(c.cpu_chunk) * 1e6 for c in cells], 0),
            spread([c.one_per_s for c in cells], 0),
            spread([c.many_per_s for c in cells], 0),
            spread([path_cpu(c.cpu_many) * 1e6 for c in cells], 0),
            f"{statistics.median(c.chunks_many for c in cells):.0f}",
        ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def parts(result: Result) -> list[str]:
    """Where the CPU goes, by process."""
    lines = [
        "| CPU by process, medians | µs a request, 200 tokens | µs a request, 12,000 tokens | µs a chunk | idle, ms a second |",
        "|---|---|---|---|---|",
    ]
    for name, cells in result.cells.items():
        for part in cells[0].idle:
            row = [
                f"{name}: {'rest of Ray' if part == 'around' else part}",
                *(
                    f"{statistics.median(pick(c)[part] for c in cells) * 1e6:,.0f}"
                    for pick in (lambda c: c.cpu_short, lambda c: c.cpu_long, lambda c: c.cpu_chunk)
                ),
                f"{statistics.median(c.idle[part] for c in cells) * 1e3:.1f}",
            ]
            if name != FLOOR or part != "around":
                lines.append(f"| {' | '.join(row)} |")
    return lines


def hop(result: Result) -> list[str]:
    """What the way over an edge adds to the same region asked directly, in the same round."""
    rounds = list(zip(result.cells[AWAY], result.cells[DIRECT], strict=True))
    lines = ["| the hop | |", "|---|---|"]

    def line(what: str, values: Sequence[float], digits: int) -> None:
        lines.append(f"| {what} | {spread(values, digits)} |")

    for tokens, first in (
        ("200", lambda cell: cell.first_short_s),
        ("12,000", lambda cell: cell.first_long_s),
    ):
        for share in (0.5, 0.9):
            added = [percentile(first(a), share) - percentile(first(d), share) for a, d in rounds]
            line(
                f"added to the first chunk, {tokens} tokens, p{share * 100:.0f}, ms",
                [s * 1e3 for s in added],
                2,
            )
    line("edge: CPU a request, 200 tokens, µs", [a.cpu_short[EDGE_PART] * 1e6 for a, _ in rounds], 0)
    line("edge: CPU a request, 12,000 tokens, µs", [a.cpu_long[EDGE_PART] * 1e6 for a, _ in rounds], 0)
    line("edge: CPU a chunk, µs", [a.cpu_chunk[EDGE_PART] * 1e6 for a, _ in rounds], 0)
    line(
        "region's gateway: CPU a chunk that it forwards to the edge, µs",
        [a.cpu_chunk["ingress"] * 1e6 for a, _ in rounds],
        0,
    )
    line(
        "region's gateway: CPU a chunk that it serves, µs",
        [d.cpu_chunk["ingress"] * 1e6 for _, d in rounds],
        0,
    )
    return lines


def first_long_ms(result: Result, name: str) -> float:
    """Median over the rounds of the p50 at 12,000 tokens."""
    return statistics.median(percentile(c.first_long_s, 0.5) for c in result.cells[name]) * 1e3


def added_long_ms(result: Result, name: str) -> float:
    """Median over the rounds of what is added to the floor's p50 at 12,000 tokens, as `latency` shows it."""
    pairs = zip(result.cells[name], result.cells[FLOOR], strict=True)
    return (
        statistics.median(
            percentile(own.first_long_s, 0.5) - percentile(floor.first_long_s, 0.5) for own, floor in pairs
        )
        * 1e3
    )


def where(result: Result) -> list[str]:
    """The time to the first chunk of 12,000 tokens in parts; the last line is what they leave unexplained."""
    floor_ms = first_long_ms(result, FLOOR)
    alone_ms = first_long_ms(result, "Serve, ingress alone")
    hop_ms = first_long_ms(result, "Serve, handle hop")
    total_ms = first_long_ms(result, "dayzero")
    steps_ms = result.steps.medians_ms()
    between = {
        "client, uvicorn, body on the wire": floor_ms,
        "HAProxy and Serve's ingress": alone_ms - floor_ms,
        "the hop through a Serve handle, 48 kB": hop_ms - alone_ms,
    }
    inside = {name: ms for name, ms in steps_ms.items() if name != WHOLE}
    asgi_ms = steps_ms[WHOLE] - sum(inside.values())
    rest_ms = total_ms - sum(between.values()) - steps_ms[WHOLE]
    rows = [
        *inside.items(),
        ("threads, tasks, ASGI, spans between these steps", asgi_ms),
        *between.items(),
        ("not explained: sums of medians, caches, waits for a core", rest_ms),
        ("**dayzero, p50**", total_ms),
    ]
    head = ["| where the time goes, 12,000 tokens | ms |", "|---|---|"]
    return head + [f"| {name} | {ms:.2f} |" for name, ms in rows]
