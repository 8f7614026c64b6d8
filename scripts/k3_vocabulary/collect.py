r"""Counts the pieces, as the pre-tokenizer cuts them, of the text in this repository and of `phrases.txt`.

    python -m scripts.k3_vocabulary.collect

- All of it is our own text. Nothing here reads, or was made from, any other vocabulary.
- The counts are committed (`pieces.txt`), because the repository's text changes and the vocabulary must not.
- Run it only to make another vocabulary: ids change with it.
"""

import json
import subprocess
from collections import Counter
from pathlib import Path

import regex  # type: ignore[import-untyped]  # of the development lock, through tiktoken

from dayzero.frontend.kimi_k3.pattern import PATTERN

ROOT = Path(__file__).resolve().parents[2]
PIECES = Path(__file__).with_name("pieces.txt")
PHRASES = Path(__file__).with_name("phrases.txt")
# The phrases are short and stand for languages that the repository is not written in.
PHRASE_WEIGHT = 20
KINDS = {".md", ".py", ".yaml", ".toml", ".in", ".txt"}
LEFT_OUT = {"requirements", "k3_vocabulary"}
LEAST_COUNT = 3
MOST_PIECES = 9_000
LONGEST_CHARACTERS = 40


def main() -> None:
    pieces = regex.compile(PATTERN, regex.VERSION1)
    counts: Counter[str] = Counter()
    for path in _texts():
        counts.update(pieces.findall(path.read_text()))
    for piece in pieces.findall(PHRASES.read_text()):
        counts[piece] += PHRASE_WEIGHT
    kept = [
        (piece, count)
        for piece, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if count >= LEAST_COUNT and len(piece) <= LONGEST_CHARACTERS
    ][:MOST_PIECES]
    PIECES.write_text("".join(f"{count}\t{json.dumps(piece)}\n" for piece, count in kept))
    print(f"{len(kept)} pieces in {PIECES}")


def _texts() -> list[Path]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S607
    paths = [Path(name) for name in sorted(names.splitlines())]
    return [ROOT / path for path in paths if path.suffix in KINDS and not LEFT_OUT & set(path.parts)]


if __name__ == "__main__":
    main()
