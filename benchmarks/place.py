"""What a routing decision costs, beside NVIDIA Dynamo's SelectionService in the same run.

    python benchmarks/place.py [--rounds N] [--quick] [--peer PYTHON] [--json FILE]

Both sides are filled with the same tokens and asked the same prompts, in interleaved rounds: prompts of 2,000 to
1,000,000 tokens, 8 and 100 replicas, with hashing and without. Then the memory of a million blocks, and the feed:
blocks a second from a publisher into an index, and the lag of one small batch (ours through a Valkey that this
script starts, the peer's over ZMQ). It prints Markdown tables. The peer is installed into `.peers` beside the
checkout's `.venv` where `--peer` does not name a Python that has it. It takes about three minutes on two cores.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from placing.ours import Ours, grow, through_the_feed
from placing.peer import environment, peer
from placing.valkey import valkey
from placing.workload import PROMPTS_TOKENS, Workload, distinct

ROOT = Path(__file__).resolve().parents[1]
BLOCK_TOKENS = 128
"""K3's unit; the peer is given the same."""
GROWN_BLOCK_TOKENS = 16
FED_BLOCKS = 200_000
RUN_BLOCKS = 100


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--times", type=int, default=20, help="decisions of each kind in a round")
    arguments.add_argument("--blocks", type=int, default=1_000_000, help="of the memory table")
    arguments.add_argument(
        "--quick", action="store_true", help="2 rounds, 100,000 blocks: to see that it works"
    )
    arguments.add_argument("--peer", type=Path, help="a Python with Dynamo in it")
    arguments.add_argument("--json", type=Path, help="write every figure to this file")
    options = arguments.parse_args()
    if options.quick:
        options.rounds, options.blocks = 2, 100_000
    python = options.peer or environment(ROOT / ".peers" / "dynamo")
    figures: dict[str, Any] = {"load": os.getloadavg()}
    print(
        f"\n{os.cpu_count()} cores, load average {figures['load'][0]:.1f}; medians [least .. most] of rounds.\n"
    )
    figures["decisions"] = [decisions(python, replicas, options) for replicas in (8, 100)]
    figures["memory"] = memory(python, options.blocks)
    figures["feed"] = feed(python)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))


def decisions(python: Path, replicas: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    workload = Workload(replicas, BLOCK_TOKENS)
    sides = {"dayzero": Ours(workload), "dayzero, hybrid": Ours(workload, hybrid=True)}
    blocks = max(side.fill() for side in sides.values())
    rows: dict[tuple[int, bool], dict[str, list[float]]] = {}
    with peer(python, replicas, BLOCK_TOKENS) as other:
        if other.do("fill")["blocks"] != blocks:
            raise RuntimeError("the two sides were not filled with the same blocks")
        for _ in range(options.rounds):
            for tokens in PROMPTS_TOKENS:
                for hashed in (False, True):
                    row = rows.setdefault((tokens, hashed), {})
                    asked = {
                        name: side.ask(tokens, options.times, hashed=hashed) for name, side in sides.items()
                    }
                    asked["Dynamo"] = other.do("ask", tokens=tokens, times=options.times, hashed=hashed)
                    _same(asked, tokens)
                    for name, answer in asked.items():
                        row.setdefault(name, []).extend(answer["took_s"])
    names = [*sides, "Dynamo"]
    print(f"A decision, {replicas} replicas, {blocks:,} blocks of {BLOCK_TOKENS} tokens; ms, p50 / p99.\n")
    print(f"| prompt tokens | | {' | '.join(names)} | Dynamo / dayzero |")
    print(f"|---{'|---:' * (len(names) + 2)}|")
    figures = []
    for (tokens, hashed), row in rows.items():
        cells = [f"{_ms(row[name], 50)} / {_ms(row[name], 99)}" for name in names]
        ratio = statistics.median(row["Dynamo"]) / statistics.median(row["dayzero"])
        kind = "hashes given" if hashed else "from tokens"
        print(f"| {tokens:,} | {kind} | {' | '.join(cells)} | {ratio:.1f} |")
        figures.append({"replicas": replicas, "tokens": tokens, "hashed": hashed, "took_s": row})
    print()
    return figures


def memory(python: Path, blocks: int) -> dict[str, Any]:
    ours = grow(GROWN_BLOCK_TOKENS, blocks, RUN_BLOCKS, hybrid=False)
    with peer(python, 1, GROWN_BLOCK_TOKENS) as other:
        theirs = other.do("grow", blocks=blocks, run_blocks=RUN_BLOCKS)
    print(f"Memory of {blocks:,} blocks that nobody shares, in one replica.\n")
    print("| | MB a million blocks |\n|---|---:|")
    for name, figure in (("dayzero", ours), ("Dynamo", theirs)):
        print(f"| {name} | {figure['bytes'] / blocks:,.0f} |")
    print(f"\nApplying them to our index: {blocks / ours['took_s']:,.0f} blocks a second.\n")
    return {"dayzero": ours, "Dynamo": theirs, "blocks": blocks}


def feed(python: Path) -> dict[str, Any]:
    with valkey() as url:
        runs = distinct(GROWN_BLOCK_TOKENS, RUN_BLOCKS, FED_BLOCKS)
        ours = asyncio.run(through_the_feed(url, GROWN_BLOCK_TOKENS, runs, lags=30))
    with peer(python, 1, GROWN_BLOCK_TOKENS) as other:
        theirs = other.do("grow", blocks=FED_BLOCKS, run_blocks=RUN_BLOCKS) | {
            "lag_s": other.do("lag", times=30)["took_s"]
        }
    print(f"The feed: {FED_BLOCKS:,} blocks in runs of {RUN_BLOCKS}, then single runs of 4 blocks.\n")
    print("| | blocks a second | lag of a small run, ms, p50 / p99 |\n|---|---:|---:|")
    for name, figure in (("dayzero, through Valkey", ours), ("Dynamo, ZMQ", theirs)):
        lag = figure["lag_s"]
        print(f"| {name} | {FED_BLOCKS / figure['took_s']:,.0f} | {_ms(lag, 50)} / {_ms(lag, 99)} |")
    print(
        "\nThe feed gathers changes for 50 ms on purpose; the peer's time includes making and sending its events."
    )
    return {"dayzero": ours, "Dynamo": theirs}


def _same(asked: dict[str, dict[str, Any]], tokens: int) -> None:
    """Both found all that is there; a hybrid has a checkpoint only where a stored run ended."""
    whole = tokens // BLOCK_TOKENS * BLOCK_TOKENS
    for name in ("dayzero", "Dynamo"):
        if asked[name]["found_tokens"] != whole:
            raise RuntimeError(f"{name} found {asked[name]['found_tokens']} of {whole} tokens")


def _ms(seconds: Sequence[float], percent: int) -> str:
    value = statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]
    return f"{value * 1000:.3f}"


if __name__ == "__main__":
    main()
