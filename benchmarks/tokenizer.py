"""Kimi K3's tokenizer beside tiktoken, the reference's way of slicing for it, and basetenkenizer.

    python benchmarks/tokenizer.py [--vocabulary FILE] [--threads 1 2] [--rounds N] [--quick] [--json FILE]

Ids are asserted equal in every round. The rivals take turns within a round, and begin with another one each round.

- first process: a new process: loading, and the first text of 10,000 tokens.
- cold: one text that nobody has seen, of a warm process.
- multi-turn: a conversation in segments of about 500 tokens, all of it seen but the last 2,000 tokens.
- pathological: 24 texts of a million characters (`--quick`: 100,000), such as one letter or white space throughout.
- bound: 10,000 conversations of 40 scopes, none like another, and what the cache then holds; asserted.
- runs: one character, or base64, a million and four million times; five at once in threads, while another thread
  sleeps a millisecond at a time and tells how much longer each took.

Figures are medians with the 10th and 90th percentile; `x` is tiktoken's median over the row's own, `best x` the same
of the fastest rounds, which a busy machine disturbs less.
Threads are bounded by the processors that a process may run on. Without a vocabulary the shipped one is used,
whose figures say nothing about Kimi K3's. basetenkenizer is installed into `.peers` the first time.
"""

import argparse
import base64
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from tokenizing.rivals import ROOT, Rival, rivals
from tokenizing.texts import KINDS, text

from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED, VARIABLE

SIZES = (1_000, 10_000, 100_000, 1_000_000)
CONVERSATIONS = (8_000, 124_000, 1_000_000)
SEGMENT_TOKENS = 500
TURN_SEGMENTS = 4
FIRST_TOKENS = 10_000
# Chosen so that a text is close to its size with Kimi K3's vocabulary; what is printed is counted.
CHARACTERS_A_TOKEN = {"english": 4.4, "code": 4.3, "agent": 3.3, "chinese": 1.55}
BOUND_RESIDENT_MIB = 192
PROBE_S = 0.001
RUNS_AT_ONCE = 5
Seconds = dict[str, list[float]]


def main() -> None:
    options = _options()
    if options.child:
        print(json.dumps(_CHILDREN[options.child[0]](options, options.child[1:])))
        return
    rivals()  # installs what is missing, once
    print(f"vocabulary: {options.vocabulary.name}; {os.cpu_count()} processors; rounds: {options.rounds}")
    results: list[dict[str, Any]] = []
    for threads in options.threads:
        print(f"\n## {threads} thread{'s' * (threads > 1)}\n\n{_HEADER}", flush=True)
        for scenario, arguments in _plan(options):
            for result in _measured(options, threads, scenario, arguments):
                results.append({"threads": threads, **result})
                _print_row(result)
    if options.json:
        options.json.write_text(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vocabulary", type=Path, default=Path(os.environ.get(VARIABLE) or SHIPPED), help="tiktoken.model"
    )
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scenarios", nargs="*", choices=_CHILDREN, default=list(_CHILDREN))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--quick", action="store_true", help="up to 100,000 tokens, three rounds")
    parser.add_argument("--json", type=Path, help="every round's seconds")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds = 3
    return options


def _plan(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    most = 124_000 if options.quick else 1_000_000
    plan = [
        ("first", []),
        *(("cold", [kind, *(str(n) for n in SIZES if n <= most)]) for kind in options.kinds),
        *(("turns", [kind, *(str(n) for n in CONVERSATIONS if n <= most)]) for kind in options.kinds),
    ]
    plan += [("pathological", [str(100_000 if options.quick else 1_000_000)]), ("bound", [])]
    plan.append(("runs", ["100000"] if options.quick else ["1000000", "4000000"]))
    return [(scenario, arguments) for scenario, arguments in plan if scenario in options.scenarios]


def _measured(
    options: argparse.Namespace, threads: int, scenario: str, arguments: Sequence[str]
) -> list[dict[str, Any]]:
    """In processes of their own, which may run on so many processors."""
    common = ["--vocabulary", str(options.vocabulary), "--rounds", str(options.rounds)]
    if scenario != "first":
        return _child(threads, [*common, "--child", scenario, *arguments])
    seconds: Seconds = {}
    for _ in range(min(options.rounds, 5)):
        for kind in rivals():
            seconds.setdefault(kind.name, []).append(
                _child(threads, [*common, "--child", "first", kind.name])
            )
    return [{"scenario": "first process", "text": "code", "tokens": FIRST_TOKENS, "seconds": seconds}]


def _child(threads: int, arguments: list[str]) -> Any:
    cores = sorted(os.sched_getaffinity(0))[:threads]
    output = subprocess.run(
        [sys.executable, __file__, *arguments],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    ).stdout
    return json.loads(output.splitlines()[-1])


def _first(options: argparse.Namespace, arguments: Sequence[str]) -> float:
    """Seconds of loading and of the first text. The interpreter's own start is not in it."""
    (rival,) = (kind() for kind in rivals() if kind.name == arguments[0])
    segment = _of_tokens("code", FIRST_TOKENS, 1)
    began_s = time.perf_counter()
    rival.load(options.vocabulary)
    rival.encode([segment])
    return time.perf_counter() - began_s


def _cold(options: argparse.Namespace, arguments: Sequence[str]) -> list[dict[str, Any]]:
    kind, *sizes = arguments
    loaded = _loaded(options, kind)
    results = []
    for tokens in map(int, sizes):
        seconds: Seconds = {}
        for number in range(options.rounds):
            segments = [_of_tokens(kind, tokens, 1_000 + number)]
            counted = _round(loaded, number, segments, seconds)
        results.append({"scenario": "cold", "text": kind, "tokens": counted, "seconds": seconds})
    return results


def _turns(options: argparse.Namespace, arguments: Sequence[str]) -> list[dict[str, Any]]:
    kind, *sizes = arguments
    loaded = _loaded(options, kind)
    results = []
    for tokens in map(int, sizes):
        count = tokens // SEGMENT_TOKENS + TURN_SEGMENTS * options.rounds
        whole = _of_tokens(kind, count * SEGMENT_TOKENS, tokens)
        size = len(whole) // count
        segments = [whole[i * size : (i + 1) * size] for i in range(count)]
        turns = range(count - TURN_SEGMENTS * options.rounds, count, TURN_SEGMENTS)
        for rival in loaded:
            rival.encode(segments[: turns[0]])
        seconds: Seconds = {}
        for number, seen in enumerate(turns):
            counted = _round(loaded, number, segments[: seen + TURN_SEGMENTS], seconds)
        results.append({"scenario": "multi-turn", "text": kind, "tokens": counted, "seconds": seconds})
    return results


def _pathological(options: argparse.Namespace, arguments: Sequence[str]) -> list[dict[str, Any]]:
    sys.path.append(str(ROOT))
    from tests.unit.kimi_k3.strings import pathological

    loaded = [rival for rival in _loaded(options, "english") if rival.name != "reference"]
    results = []
    for name, whole in pathological(int(arguments[0])).items():
        seconds: Seconds = {}
        for number in range(min(options.rounds, 3)):
            # One character more each round: no cache knows it.
            counted = _round(loaded, number, [whole + "x" * number], seconds)
        results.append({"scenario": "pathological", "text": name, "tokens": counted, "seconds": seconds})
    return results


def _bound(options: argparse.Namespace, _: Sequence[str]) -> list[dict[str, Any]]:
    """Bytes resident, and counted by the cache, after 10,000 conversations in a cache of 64 MiB."""
    import psutil

    from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
    from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary

    tokenizer = K3Tokenizer(load_vocabulary(options.vocabulary), cache_bytes=64 * 1024 * 1024)
    tokenizer.warm()
    process = psutil.Process()
    before_mib = process.memory_info().rss / 2**20
    lines = {}
    for number in range(10_001):
        if number in (100, 1_000, 2_500, 5_000, 10_000):
            resident_mib = process.memory_info().rss / 2**20
            stats = tokenizer.cache_stats()
            lines[f"{number} conversations"] = f"{resident_mib:.0f} MiB resident, {stats}"
            assert stats.size_bytes <= stats.bound_bytes, stats
            assert resident_mib - before_mib < BOUND_RESIDENT_MIB, f"{resident_mib - before_mib:.0f} MiB more"
        texts = [text(KINDS[place % 4], 2_000, number * 20 + place) for place in range(8)]
        tokenizer.encode([*texts, "user", "assistant"], scope=f"tenant {number % 40}")
    return [{"scenario": "bound", "lines": lines}]


def _runs(options: argparse.Namespace, arguments: Sequence[str]) -> list[dict[str, Any]]:
    from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
    from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary

    tokenizer = K3Tokenizer(load_vocabulary(options.vocabulary), cache_bytes=0)
    tokenizer.warm()
    lines = {}
    for characters in map(int, arguments):
        texts = {repr(unit): unit * characters for unit in (" ", "a", "=", "^", "\n", "\u3000", "中")}
        texts["base64"] = base64.b64encode(random.Random(1).randbytes(characters)).decode()[:characters]
        for name, whole in texts.items():
            lines[f"{characters:,} of {name}"] = _five_at_once(tokenizer, whole)
    return [{"scenario": "runs", "lines": lines}]


def _five_at_once(tokenizer: Any, whole: str) -> str:
    late_s: list[float] = []
    done = threading.Event()

    def probe() -> None:
        while not done.is_set():
            began_s = time.perf_counter()
            time.sleep(PROBE_S)
            late_s.append(time.perf_counter() - began_s - PROBE_S)

    def timed(_: int) -> tuple[float, bytes]:
        began_s = time.perf_counter()
        (ids,) = tokenizer.encode([whole])
        return time.perf_counter() - began_s, ids

    alone_s, alone = timed(0)
    with ThreadPoolExecutor(RUNS_AT_ONCE + 1) as threads:
        watched = threads.submit(probe)
        taken = list(threads.map(timed, range(RUNS_AT_ONCE)))
        done.set()
        watched.result()
    assert all(ids == alone for _, ids in taken), "ids differ"
    slowest_s = max(seconds for seconds, _ in taken)
    return (
        f"{len(alone) // 4:,} tokens, alone {alone_s * 1e3:.0f} ms, slowest of five {slowest_s * 1e3:.0f} ms, "
        f"probe late by at most {max(late_s) * 1e3:.0f} ms"
    )


_CHILDREN: dict[str, Any] = {
    "first": _first,
    "cold": _cold,
    "turns": _turns,
    "pathological": _pathological,
    "bound": _bound,
    "runs": _runs,
}


def _loaded(options: argparse.Namespace, kind: str) -> list[Rival]:
    loaded: list[Rival] = [rival() for rival in rivals()]
    for rival in loaded:
        rival.load(options.vocabulary)
        rival.encode([_of_tokens(kind, 50_000, 0)])
    return loaded


def _round(loaded: list[Rival], number: int, segments: list[str], seconds: Seconds) -> int:
    """Returns the tokens. Each rival gets strings of its own, as a request's parser would make them."""
    buffers = set()
    start = number % len(loaded)
    for rival in [*loaded[start:], *loaded[:start]]:
        copies = [(segment + " ")[:-1] for segment in segments]
        began_s = time.perf_counter()
        encoded = rival.encode(copies)
        seconds.setdefault(rival.name, []).append(time.perf_counter() - began_s)
        buffers.add(rival.buffer(encoded))
    assert len(buffers) == 1, "ids differ"
    return len(buffers.pop()) // 4


def _of_tokens(kind: str, tokens: int, seed: int) -> str:
    return text(kind, round(tokens * CHARACTERS_A_TOKEN[kind]), seed)


_HEADER = "| scenario | text | tokens | tokenizer | ms | 10 % .. 90 % | x | best x |\n|---|---|--:|---|--:|--:|--:|--:|"


def _print_row(result: dict[str, Any]) -> None:
    if "lines" in result:
        for what, line in result["lines"].items():
            print(f"\n{what}: {line}", flush=True)
        return
    base = [value * 1e3 for value in result["seconds"]["tiktoken"]]
    for name, values in result["seconds"].items():
        ms = sorted(value * 1e3 for value in values)
        low, high = (ms[round(q * (len(ms) - 1))] for q in (0.1, 0.9))
        median = statistics.median(ms)
        print(
            f"| {result['scenario']} | {result['text']} | {result['tokens']:,} | {name} | {median:.2f} "
            f"| {low:.2f} .. {high:.2f} | {statistics.median(base) / median:.1f} | {min(base) / ms[0]:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
