"""What Kimi K3's tokenizer is measured against: tiktoken over the slices that KIMI_K3 section 3 describes.

The pattern is written out, and the walk over the characters is written as the description reads, one at a time, and shares nothing with the product.
"""

from collections.abc import Iterator

import tiktoken

# The alternatives of KIMI_K3 section 3, as they stand there.
ALTERNATIVES = (
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
PATTERN = "|".join(ALTERNATIVES)


class Reference:
    def __init__(self, ranks) -> None:
        self.tiktoken = tiktoken.Encoding(
            "kimi-k3", pat_str=PATTERN, mergeable_ranks=dict(ranks), special_tokens={}
        )

    def encode(self, text: str) -> list[int]:
        return [i for part in reference_slices(text) for i in self.tiktoken.encode_ordinary(part)]


def reference_slices(text: str, slice_characters: int = 400_000, run_characters: int = 25_000) -> list[str]:
    chunks = [text[start : start + slice_characters] for start in range(0, len(text), slice_characters)]
    return [part for chunk in chunks for part in _runs(chunk, run_characters)]


def _runs(chunk: str, most: int) -> Iterator[str]:
    start = length = 0
    was_space = chunk[0].isspace()
    for position, character in enumerate(chunk):
        is_space = character.isspace()
        length = length + 1 if is_space == was_space else 1
        was_space = is_space
        if length > most:
            yield chunk[start:position]
            start, length = position, 1
    yield chunk[start:]
