"""The half of `benchmarks/frontend.py` before the engine: a conversation to ids, and ids to a chain."""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from dayzero.engine.chains import with_chain
from dayzero.engine.types import EngineRequest, Sampling
from dayzero.frontend.kimi_k3 import KimiK3Frontend
from dayzero.frontend.kimi_k3.renderer import Renderer
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from frontend.talks import Talk

_T = TypeVar("_T")
UNIT_TOKENS = 128
TALKS = (
    # words, tokens, characters of a tool's result, share of the rounds
    ("an agent's", 20_000, 2_400, 1.0),
    ("an agent's", 100_000, 2_400, 1.0),
    ("an agent's, in small messages", 100_000, 60, 1.0),
    ("an agent's", 1_000_000, 2_400, 0.2),
)
GOAL_MS = 15.0
DISTINCT = 10_000
SMALL_CACHE_BYTES = 32 * 1024 * 1024
COLD, AGAIN, NEXT, SILENT, CHAIN, BOTH = (
    "nothing known",
    "the same request again",
    "the next turn: one call and its result are new",
    "thinking off: messages new, most texts known",
    f"chain of the next turn, units of {UNIT_TOKENS}",
    "next turn, render and chain",
)


def run(vocabulary: Vocabulary, *, rounds: int, quick: bool) -> None:
    for words, tokens, characters, share in TALKS[: 3 if quick else None]:
        _talk(vocabulary, words, tokens, characters, max(3, round(rounds * share)))
    _bound(vocabulary, DISTINCT // 20 if quick else DISTINCT)


def _talk(vocabulary: Vocabulary, words: str, tokens: int, characters: int, rounds: int) -> None:
    talk, frontend = Talk(result_characters=characters), KimiK3Frontend(K3Tokenizer(vocabulary))
    while (known := frontend.render(talk.request(), scope="").tokens) < tokens:
        talk.grow(max(1, (tokens - known) * 2 // (characters + 1_000)))
    bare = Renderer(K3Tokenizer(vocabulary, cache_bytes=0), cache_bytes=0)
    spent: dict[str, list[float]] = {name: [] for name in (COLD, AGAIN, NEXT, SILENT, CHAIN, BOTH)}
    for _ in range(rounds):
        _round(KimiK3Frontend(K3Tokenizer(vocabulary)), bare, talk, spent)
    messages, segments = len(talk.request().messages), len(frontend.written(talk.request()))
    print(f"\n{words}: {known:,} tokens, {messages:,} messages, {segments:,} segments, {rounds} rounds")
    for name, seconds in spent.items():
        _row(name, seconds)
    if words == TALKS[1][0] and tokens == TALKS[1][1]:
        verdict = "met" if statistics.median(spent[BOTH]) * 1e3 < GOAL_MS else "missed"
        print(f"  goal of {GOAL_MS:.0f} ms for a warm request of 100k tokens: {verdict}")


def _round(frontend: KimiK3Frontend, bare: Renderer, talk: Talk, spent: dict[str, list[float]]) -> None:
    """`frontend`: a new one, so that every row begins from what it says. `bare`: one that remembers nothing."""
    frontend.tokenizer.warm()
    cold, again, longer = talk.request(), talk.request(), talk.next_request()
    silent = talk.request(thinking=False)
    _timed(lambda: frontend.render(cold, scope=""), spent[COLD])
    _timed(lambda: frontend.render(again, scope=""), spent[AGAIN])
    prompt = _timed(lambda: frontend.render(longer, scope=""), spent[NEXT])
    request = EngineRequest(request_id="r", prompt_ids=prompt.ids, sampling=Sampling(max_tokens=1))
    _timed(lambda: with_chain(request, "kimi-k3", UNIT_TOKENS), spent[CHAIN])
    spent[BOTH].append(spent[NEXT][-1] + spent[CHAIN][-1])
    _timed(lambda: frontend.render(silent, scope=""), spent[SILENT])
    assert prompt.ids == bare.render(longer, "").ids, "what is remembered changed an id"


def _bound(vocabulary: Vocabulary, distinct: int) -> None:
    """Conversations of which no two share a message, of many tenants, through caches too small for them."""
    tokenizer = K3Tokenizer(vocabulary, cache_bytes=SMALL_CACHE_BYTES)
    renderer = Renderer(tokenizer, cache_bytes=SMALL_CACHE_BYTES)
    tokens, most = 0, [0, 0]
    halfway_bytes = 0
    for seed in range(distinct):
        talk = Talk(seed)
        talk.grow()
        tokens += len(renderer.render(talk.request(), f"tenant {seed % 50}").ids) // 4
        stats = (tokenizer.cache_stats(), renderer.cache_stats())
        most = [max(before, one.size_bytes) for before, one in zip(most, stats, strict=True)]
        if seed == distinct // 2:
            halfway_bytes = _peak_bytes()
    print(f"\n{distinct:,} distinct conversations of 50 tenants, {tokens:,} tokens")
    for name, one, largest in zip(("texts", "messages"), stats, most, strict=True):
        assert largest <= one.bound_bytes
        print(
            f"  {name}: at most {_mib(largest)} of {_mib(one.bound_bytes)}, {one.entries:,} kept, {one.evicted:,} let go"
        )
    print(f"  the process's peak grew by {_mib(_peak_bytes() - halfway_bytes)} in the second half")


def _timed(work: Callable[[], _T], seconds: list[float]) -> _T:
    began_s = time.perf_counter()
    result = work()
    seconds.append(time.perf_counter() - began_s)
    return result


def _row(name: str, seconds: Sequence[float]) -> None:
    ordered = sorted(one * 1e3 for one in seconds)
    low, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.1, 0.9))
    print(f"  {name:<52} {statistics.median(ordered):>9.2f} ms [{low:.2f} .. {high:.2f}]")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
