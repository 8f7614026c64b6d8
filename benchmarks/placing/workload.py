"""What both sides are filled with and asked: the same tokens, made from seeds. Needs numpy only: the peer reads it too.

- Every replica holds the same shared system prompt, conversations of its own, and one holds the prompt that is asked.
- Hashes on the wire to the peer are any distinct 63-bit numbers: it makes its own from the tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

VOCABULARY = 150_000
SYSTEM_TOKENS = 2_048
SYSTEM_HASH = 1 << 60
TALKS = 8
TALK_TOKENS = 12_288
PROMPTS_TOKENS = (2_000, 12_000, 100_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks stored at once, as an engine tells of them: whole blocks that follow the prefix that `parent` names."""

    replica: int
    prefix: np.ndarray
    token_ids: np.ndarray
    first_hash: int
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    replicas: int
    block_tokens: int

    def prompt(self, tokens: int) -> np.ndarray:
        """The prompt of so many tokens that is asked, the shared system prompt first; one replica holds all of it."""
        own = _tokens(seed=tokens, count=max(0, tokens - SYSTEM_TOKENS))
        return np.concatenate([self.system(), own])[:tokens]

    def system(self) -> np.ndarray:
        return _tokens(seed=1, count=SYSTEM_TOKENS)

    def holder(self, tokens: int) -> int:
        return PROMPTS_TOKENS.index(tokens) % self.replicas

    def runs(self) -> Iterator[Run]:
        nothing, system = np.empty(0, np.uint32), self.system()
        last = SYSTEM_HASH + SYSTEM_TOKENS // self.block_tokens - 1
        number = 1
        for replica in range(self.replicas):
            yield Run(replica, nothing, system, SYSTEM_HASH)
            for talk in range(TALKS):
                own = _tokens(seed=1000 + replica * TALKS + talk, count=TALK_TOKENS - SYSTEM_TOKENS)
                yield Run(replica, system, own, number << 32, last)
                number += 1
        for tokens in PROMPTS_TOKENS[1:]:  # the shortest lies within the system prompt
            own = self.prompt(tokens)[SYSTEM_TOKENS : tokens // self.block_tokens * self.block_tokens]
            yield Run(self.holder(tokens), system, own, number << 32, last)
            number += 1


def distinct(block_tokens: int, run_blocks: int, blocks: int) -> Iterator[Run]:
    """`blocks` blocks that nobody shares, in runs, all on replica 0."""
    for number in range(blocks // run_blocks):
        ids = _tokens(seed=5_000_000 + number, count=run_blocks * block_tokens)
        yield Run(0, ids[:0], ids, (1 << 50) + (number << 24))


def _tokens(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(10, VOCABULARY, size=count, dtype=np.uint32)
