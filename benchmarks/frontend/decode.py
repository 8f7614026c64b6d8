"""The half of `benchmarks/frontend.py` behind the engine: ids of an answer to events, beside vLLM's own K3 parsers.

Three kinds of answer, each of 1,000, 10,000 and 100,000 tokens: prose that is thought and said, a call with one long
string, many small calls. Each is pushed one id at a time (as an engine streams), eight at a time (a busy engine, or a
gateway that coalesces), and at once (a buffered answer). Every cell is the median over the rounds, which take ours and
vLLM's in turn; it is CPU time, so that a busy machine does not count. Texts and calls of both are compared before
anything is timed.

vLLM's parsers scan the whole text at every delta, so a cell of theirs ends after `CAP_S`; then the figure is a
lower bound, marked ≥, with the number of tokens that it got to.
"""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dayzero.frontend.events import FinishReason, fold
from dayzero.frontend.kimi_k3.decoder import KimiK3Decoder
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from dayzero.frontend.protocol import Channel
from frontend.vllm_parsers import Peer, values

SIZES_TOKENS = (1_000, 10_000, 100_000)
DELTAS = {"1 id": 1, "8 ids": 8, "at once": 0}
GOAL_US = 2.0
CAP_S = 5.0
"""For one cell of vLLM's."""
MOST_ROUNDS = 5
"""Of which each takes a minute, by vLLM's part."""
COMPARED_TOKENS = 1_000
TEXT = (
    "When the harbour froze, the pilots walked out to the light and counted ships that would not come in.\n"
    "    def depth(x: int) -> int:\n        return x // 7  # 1,204 metres\n"
    "Où êtes-vous? 港口结冰时领航员们走到灯塔旁。\n"
)


@dataclass
class Answers:
    """Answers of these kinds, of about so many tokens."""

    tokenizer: K3Tokenizer
    _text: list[int] = field(default_factory=list)

    def ids(self, kind: str, tokens: int) -> list[int]:
        end = [*self._close("message"), self.tokenizer.vocabulary.specials.end_of_msg]
        if kind == "prose":
            half = self._prose(tokens // 2)
            body = [*half, *self._close("think"), *self._open("response"), *half, *self._close("response")]
        elif kind == "one long string":
            body = [*self._close("think"), *self._open("tools"), *self._open('call tool="write" index="1"')]
            body += [*self._open('argument key="text" type="string"'), *self._prose(tokens)]
            body += [*self._close("argument"), *self._close("call"), *self._close("tools")]
        else:
            body = [*self._close("think"), *self._open("tools")]
            index = 0
            while len(body) < tokens:
                index += 1
                body += self._open(f'call tool="weather" index="{index}"')
                body += [*self._open('argument key="city" type="string"'), *self._encode("San Francisco")]
                body += [*self._close("argument"), *self._open('argument key="days" type="number"')]
                body += [*self._encode("3"), *self._close("argument"), *self._close("call")]
            body += self._close("tools")
        return body + end

    def _prose(self, tokens: int) -> list[int]:
        while len(self._text) < tokens:
            self._text += self._encode(TEXT * 500)
        return self._text[:tokens]

    def _encode(self, text: str) -> list[int]:
        return list(memoryview(self.tokenizer.encode([text])[0]).cast("I"))

    def _open(self, tag: str) -> list[int]:
        specials = self.tokenizer.vocabulary.specials
        return [specials.open, *self._encode(tag), specials.sep]

    def _close(self, tag: str) -> list[int]:
        specials = self.tokenizer.vocabulary.specials
        return [specials.close, *self._encode(tag), specials.sep]


KINDS = ("prose", "one long string", "small calls")


def parts_of(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ids] if size == 0 else [ids[at : at + size] for at in range(0, len(ids), size)]


def decode(tokenizer: K3Tokenizer, parts: Iterable[Sequence[int]]) -> list:
    decoder = KimiK3Decoder(tokenizer.vocabulary, start=Channel.THINK)
    events = [event for part in parts for event in decoder.push(part)]
    return events + decoder.finish(FinishReason.STOP)


@dataclass
class Cell:
    """Microseconds of CPU a token, of each round. `reached`: tokens that were got through where the cap came first."""

    us: list[float] = field(default_factory=list)
    reached: int | None = None

    def __str__(self) -> str:
        if not self.us:
            return "-"
        text = f"{statistics.median(self.us):,.2f}"
        return text if self.reached is None else f"≥ {text} ({self.reached:,} tokens)"


def capped(parts: Iterable[Sequence[int]], seen: list[int]) -> Iterator[Sequence[int]]:
    until_s = time.perf_counter() + CAP_S
    for part in parts:
        if time.perf_counter() > until_s:
            return
        seen[0] += len(part)
        yield part


def run(vocabulary: Vocabulary, *, rounds: int, quick: bool) -> None:
    """Prints the table. Without vLLM its columns are empty."""
    tokenizer = K3Tokenizer(vocabulary)
    answers = Answers(tokenizer)
    sizes = SIZES_TOKENS[:2] if quick else SIZES_TOKENS
    try:
        peer = Peer(tokenizer)
    except ImportError:
        peer = None
        print("vLLM is not installed: its columns are empty.\n")
    if peer is not None:
        for kind in KINDS:
            _compare(tokenizer, peer, answers.ids(kind, COMPARED_TOKENS))
    cells: dict[tuple[str, int, str, str], Cell] = {}
    for _ in range(1 if quick else min(rounds, MOST_ROUNDS)):
        for kind in KINDS:
            for tokens in sizes:
                ids = answers.ids(kind, tokens)
                for name, size in DELTAS.items():
                    parts = parts_of(ids, size)
                    began_s = time.process_time()
                    _push(tokenizer, parts)
                    took_us = (time.process_time() - began_s) * 1e6
                    cells.setdefault((kind, tokens, name, "ours"), Cell()).us.append(took_us / len(ids))
                    if peer is not None:
                        _peer_cell(peer, ids, parts, cells.setdefault((kind, tokens, name, "vLLM"), Cell()))
    _print(cells, sizes)


def _push(tokenizer: K3Tokenizer, parts: Iterable[Sequence[int]]) -> None:
    """A server sends events on and keeps none."""
    decoder = KimiK3Decoder(tokenizer.vocabulary, start=Channel.THINK)
    for part in parts:
        decoder.push(part)
    decoder.finish(FinishReason.STOP)


def _peer_cell(peer: Peer, ids: Sequence[int], parts: Sequence[Sequence[int]], cell: Cell) -> None:
    request = peer.request(["write", "weather"])
    seen = [0]
    began_s = time.process_time()
    if len(parts) == 1:
        peer.buffered(ids, Channel.THINK, request)
        seen[0] = len(ids)
    else:
        peer.streamed(capped(parts, seen), Channel.THINK, request)
    cell.us.append((time.process_time() - began_s) * 1e6 / seen[0])
    if seen[0] < len(ids):
        cell.reached = seen[0]


def _compare(tokenizer: K3Tokenizer, peer: Peer, ids: list[int]) -> None:
    """Raises AssertionError unless both come to the same answer."""
    ours = fold(decode(tokenizer, [ids]))
    request = peer.request(["write", "weather"])
    for theirs in (
        peer.buffered(ids, Channel.THINK, request),
        peer.streamed(parts_of(ids, 8), Channel.THINK, request),
    ):
        assert (theirs.reasoning, theirs.content) == (ours.reasoning, ours.content)
        assert values(theirs.calls) == values((call.name, call.arguments) for call in ours.tool_calls)


def _print(cells: dict[tuple[str, int, str, str], Cell], sizes: Sequence[int]) -> None:
    names = [f"{who}, {name}" for name in DELTAS for who in ("ours", "vLLM")]
    print(f"Microseconds of CPU a token, detokenizing included (goal: under {GOAL_US:g}, and flat)\n")
    print(f"| answer | tokens | {' | '.join(names)} |")
    print(f"|---|---{'|---' * len(names)}|")
    for kind in KINDS:
        for tokens in sizes:
            row = [
                str(cells.get((kind, tokens, name, who), Cell()))
                for name in DELTAS
                for who in ("ours", "vLLM")
            ]
            print(f"| {kind} | {tokens:,} | {' | '.join(row)} |")
