"""Trains the small vocabulary that ships with dayzero: byte-pair encoding over the counts in `pieces.txt`.

    python -m scripts.k3_vocabulary.train [--check]

- The same counts give the same bytes: pairs of equal count are taken in the order of their bytes.
- The 256 single bytes come first, each at the rank of its value, then the merges, the most frequent first.
- `--check` compares with the file that is there instead of writing it.
"""

import argparse
import heapq
import json
import sys
from base64 import b64encode
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED

PIECES = Path(__file__).with_name("pieces.txt")
MERGES = 6_000
Pair = tuple[bytes, bytes]


def vocabulary_file(counts: dict[str, int], merges: int = MERGES) -> bytes:
    """Lines of base64 token and rank."""
    tokens = [bytes([value]) for value in range(256)] + train(counts, merges)
    return b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(tokens))


def train(counts: dict[str, int], merges: int) -> list[bytes]:
    """The tokens that the most frequent pairs merge to, in that order; fewer where no pair occurs twice."""
    words = [[bytes([value]) for value in piece.encode()] for piece in counts]
    weights = list(counts.values())
    totals: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for number, word in enumerate(words):
        for pair in pairwise(word):
            totals[pair] += weights[number]
            places[pair].add(number)
    heap = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(heap)
    tokens: dict[bytes, None] = {}
    while heap and len(tokens) < merges:
        negative, pair = heapq.heappop(heap)
        if totals[pair] != -negative or -negative < 2:
            continue  # counted again since; its newer entry is in the heap
        tokens[pair[0] + pair[1]] = None
        changed = set()
        for number in sorted(places.pop(pair)):
            word, weight = words[number], weights[number]
            merged = _merge(word, pair)
            for old in pairwise(word):
                totals[old] -= weight
                changed.add(old)
            for new in pairwise(merged):
                totals[new] += weight
                places[new].add(number)
                changed.add(new)
            words[number] = merged
        for seen in changed:
            heapq.heappush(heap, (-totals[seen], seen))
    return list(tokens)


def _merge(word: list[bytes], pair: Pair) -> list[bytes]:
    merged: list[bytes] = []
    position = 0
    while position < len(word):
        if tuple(word[position : position + 2]) == pair:
            merged.append(pair[0] + pair[1])
            position += 2
        else:
            merged.append(word[position])
            position += 1
    return merged


def read_counts() -> dict[str, int]:
    lines = (line.split("\t", 1) for line in PIECES.read_text().splitlines())
    return {json.loads(piece): int(count) for count, piece in lines}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.k3_vocabulary.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true")
    content = vocabulary_file(read_counts())
    if parser.parse_args().check:
        same = SHIPPED.read_bytes() == content
        print(f"{SHIPPED.name}: {'as trained' if same else 'not what these pieces give'}")
        return not same
    SHIPPED.write_bytes(content)
    print(f"{SHIPPED.name}: {len(content.splitlines())} ranks, {len(content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
