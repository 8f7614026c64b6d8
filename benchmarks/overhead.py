"""What dayzero costs beside a bare Serve deployment and plain uvicorn, with an engine that takes no time.

    python benchmarks/overhead.py [--rounds N] [--seconds S] [--quick] [--json FILE]
    python benchmarks/overhead.py --wan [--round-trip MS] [--quick] [--json FILE]

One interleaved run: two Ray clusters with the same flags (dayzero as `dayzero up` starts it; a Starlette app that
streams the same frames), an edge gateway before the first, and a uvicorn, each asked in turn. It prints Markdown
tables: the time to the first chunk at 200 and 12,000 prompt tokens, CPU a request and a chunk, requests a second, what
the hop over the edge adds, and where dayzero's time goes. It takes about five minutes on two cores.

With --wan: the same region at the far end of a line with a round trip, asked directly and over an edge at the near
end. It makes two network namespaces, so it needs root, iproute2 and /dev/net/tun; it takes about four minutes.

Everything that either starts is ended, by id.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from overhead import far, far_report, report, wan
from overhead.breakdown import in_process
from overhead.measure import Plan, Result, long_texts, measure
from overhead.prompts import Prompts
from overhead.systems import System, running

from dayzero.cli.main import explain
from dayzero.errors import DayzeroError

SHORT_TOKENS, LONG_TOKENS = 200, 12_000
GOAL_MS = 10.0


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=2.0, help="of each throughput phase")
    arguments.add_argument("--quick", action="store_true", help="2 rounds and 1 s: to see that it works")
    arguments.add_argument("--wan", action="store_true", help="a region at the far end of a line instead")
    arguments.add_argument("--round-trip", type=float, default=70.0, metavar="MS", help="of that line")
    arguments.add_argument("--json", type=Path, help="write every round's figures to this file")
    options = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is ended
    # Ray's workers import the bare application from here.
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if options.wan:
        far_away(options)
    else:
        nearby(options)


def nearby(options: argparse.Namespace) -> None:
    plan = Plan(2, 1.0) if options.quick else Plan(options.rounds, options.seconds)
    with (
        tempfile.TemporaryDirectory(prefix="overhead-") as scratch,
        running(Path(scratch)) as (systems, folder),
    ):
        result = uvloop.run(run(systems, folder, plan))
    print_all(result, plan)
    write(options.json, asdict(result))


def far_away(options: argparse.Namespace) -> None:
    if lacking := wan.why_not():
        sys.exit(f"--wan cannot run here: {lacking}.")
    plan = far.FarPlan(4, 2) if options.quick else far.FarPlan(20, 10)
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="overhead-") as scratch,
        far.running(Path(scratch) / "far") as (line, ways, run),
    ):
        prompts = [
            Prompts.make(run.models / "smollm2", tokens, 64, seed)
            for seed, tokens in ((1, SHORT_TOKENS), (2, LONG_TOKENS))
        ]
        found = uvloop.run(far.measure(line, ways, prompts, plan, options.round_trip / 1e3, say=say))
    print(
        f"\n{os.cpu_count()} cores, Python {platform.python_version()}; load average at the start: {load:.1f}.\n"
    )
    for table in (far_report.first_chunks(found), far_report.gaps(found)):
        print("\n".join(table), end="\n\n")
    write(options.json, [asdict(one) for one in found])


def say(text: str) -> None:
    print(text, file=sys.stderr)


def write(file: Path | None, figures: object) -> None:
    if file is not None:
        file.write_text(json.dumps(figures, indent=1))


async def run(systems: list[System], folder: Path, plan: Plan) -> Result:
    short = Prompts.make(folder, SHORT_TOKENS, 512, seed=1)
    long = Prompts.make(folder, LONG_TOKENS, long_texts(plan, len(systems)), seed=2)
    async with in_process(folder) as here:
        return await measure(systems, here, short, long, plan, say=say)


def print_all(result: Result, plan: Plan) -> None:
    load = ", ".join(f"{value:.1f}" for value in result.load)
    print(
        f"\n{os.cpu_count()} cores, Python {platform.python_version()}, {plan.rounds} interleaved rounds; load average "
        f"at their starts: {load}. Medians over the rounds [least .. most].\n"
    )
    tables = (
        report.latency(result, lambda cell: cell.first_short_s, "first chunk, 200 prompt tokens"),
        report.latency(result, lambda cell: cell.first_long_s, "first chunk, 12,000 prompt tokens"),
        report.work(result),
        report.parts(result),
        report.hop(result),
        report.where(result),
    )
    for table in tables:
        print("\n".join(table), end="\n\n")
    added_ms = report.added_long_ms(result, "dayzero")
    met = "met" if added_ms < GOAL_MS else "missed"
    print(f"Goal, added p50 at 12,000 tokens under {GOAL_MS:.0f} ms: {added_ms:.1f} ms, {met}.")


if __name__ == "__main__":
    try:
        main()
    except DayzeroError as error:  # a start that failed says why
        explain(error)
        sys.exit(1)
