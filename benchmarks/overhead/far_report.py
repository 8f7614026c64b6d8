"""The tables of `far`, in Markdown: medians of the requests, with the tenth and the ninetieth of a hundred in brackets."""

from collections.abc import Sequence

from overhead.far import DIRECT, KERNEL, OVER_EDGE, Far
from overhead.report import percentile

TOGETHER_S = 0.001
"""A chunk that comes so soon after another came with it."""


def first_chunks(found: Sequence[Far]) -> list[str]:
    lines = [
        "| first chunk, p50 [p10 .. p90] | direct, ms | over the edge, ms | difference, ms | ratio | round trips: direct | over the edge |",
        "|---|---|---|---|---|---|---|",
    ]
    here = found[0].first_s
    for far in found:
        for kind in dict.fromkeys(name.rsplit(", ", 1)[0] for name in far.first_s):
            names = (f"{kind}, {DIRECT}", f"{kind}, {OVER_EDGE}")
            direct_s, over_s = (percentile(far.first_s[name], 0.5) for name in names)
            trips = [
                f"{(percentile(far.first_s[name], 0.5) - percentile(here[name], 0.5)) / far.round_trip_s:.2f}"
                if far.round_trip_s
                else ""
                for name in names
            ]
            setting = "" if far.setting == KERNEL else f"; {far.setting}"
            row = [
                f"{far.round_trip_s * 1e3:g} ms away; {kind}{setting}",
                *(_spread(far.first_s[name]) for name in names),
                f"{(over_s - direct_s) * 1e3:.1f}",
                f"{over_s / direct_s:.2f}",
                *trips,
            ]
            lines.append(f"| {' | '.join(row)} |")
    return lines


def gaps(found: Sequence[Far]) -> list[str]:
    lines = [
        "| gaps between chunks, a token each 4.5 ms | chunks | p50 ms | p90 ms | p99 ms | most, ms | came together |",
        "|---|---|---|---|---|---|---|",
    ]
    for far in found:
        for way, values in far.gaps_s.items():
            together = sum(gap < TOGETHER_S for gap in values) / len(values)
            shares = [f"{percentile(values, share) * 1e3:.1f}" for share in (0.5, 0.9, 0.99, 1.0)]
            row = [f"{far.round_trip_s * 1e3:g} ms away, {way}", str(len(values)), *shares, f"{together:.0%}"]
            lines.append(f"| {' | '.join(row)} |")
    return lines


def _spread(values: Sequence[float]) -> str:
    low, middle, high = (percentile(values, share) * 1e3 for share in (0.1, 0.5, 0.9))
    return f"{middle:.1f} [{low:.1f} .. {high:.1f}]"
