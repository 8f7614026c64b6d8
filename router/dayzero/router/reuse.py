"""Reuse: how much of a prompt each replica's cache can give, by the rule of vLLM 0.32 (KIMI_K3 section 2). Pure.

- A prefix is reusable where every attention group covers it block by block and every state group holds a checkpoint
  exactly there; never the whole prompt.
- With a unit finer than the block, one more position counts: the deepest unit inside the next block that all
  attention groups know.
- Replicas are bits of one int, so a block costs one look-up however many there are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dayzero.router.chain import HASH_BYTES, Chain, ChainHash
from dayzero.router.changes import Layout

Table = Mapping[ChainHash, int]
"""A block or checkpoint → the bits of those who have it."""

Holders = Callable[[ChainHash], int]


@dataclass(frozen=True, slots=True)
class Caches:
    """Who has a block in all attention groups, and a checkpoint in all state groups, where there are any."""

    attention: Holders
    states: Holders | None = None


def holders_of(groups: Sequence[Sequence[Table]]) -> Holders:
    """Who has a block in every one of `groups`, in any one of a group's tables (its tiers)."""
    if len(groups) == 1 and len(groups[0]) == 1:
        get = groups[0][0].get
        return lambda block: get(block, 0)

    def everywhere(block: ChainHash) -> int:
        bits = -1
        for tiers in groups:
            here = 0
            for table in tiers:
                here |= table.get(block, 0)
            bits &= here
            if not bits:
                return 0
        return bits

    return everywhere


def reach(
    layout: Layout, chain: Chain, prompt_tokens: int, bits: int, caches: Caches
) -> list[tuple[int, int]]:
    """(bits, tokens) for those of `bits` that can give more than nothing. `chain` has the layout's unit."""
    most = min(max(prompt_tokens - 1, 0) // layout.unit_tokens, len(chain))
    step = layout.block_tokens // layout.unit_tokens
    found = _covered(chain.joined, step, most, bits, caches.attention)
    if step > 1:
        found = [end for part in found for end in _inside(chain.joined, step, most, part, caches.attention)]
    if caches.states is not None:
        found = _checkpointed(chain.joined, found, caches.states)
    return [(who, units * layout.unit_tokens) for who, units in found if units]


def _covered(joined: bytes, step: int, most: int, bits: int, attention: Holders) -> list[tuple[int, int]]:
    """(bits, units) that attention covers. `step`: units in a block; `most`: units to look at."""
    ended: list[tuple[int, int]] = []
    stride, blocks = step * HASH_BYTES, most // step
    for block in range(blocks):
        end = (block + 1) * stride
        still = bits & attention(ChainHash(joined[end - HASH_BYTES : end]))
        if still != bits:
            ended.append((bits ^ still, block * step))
            bits = still
            if not bits:
                break
    if bits:
        ended.append((bits, blocks * step))
    return ended


def _inside(
    joined: bytes, step: int, most: int, part: tuple[int, int], attention: Holders
) -> list[tuple[int, int]]:
    """Those who end on a block, each at the deepest unit that it knows inside the next one."""
    bits, first = part
    deeper: list[tuple[int, int]] = []
    for units in range(min(first + step - 1, most), first, -1):
        found = bits & attention(_named(joined, units))
        if found:
            deeper.append((found, units))
            bits ^= found
            if not bits:
                return deeper
    return [*deeper, (bits, first)]


def _checkpointed(joined: bytes, covered: list[tuple[int, int]], states: Holders) -> list[tuple[int, int]]:
    """Each at its deepest checkpoint within what attention covers."""
    found: list[tuple[int, int]] = []
    waiting = sorted(covered, key=lambda part: part[1])
    bits = 0
    for units in range(waiting[-1][1] if waiting else 0, 0, -1):
        while waiting and waiting[-1][1] >= units:
            bits |= waiting.pop()[0]
        here = bits & states(_named(joined, units)) if bits else 0
        if here:
            found.append((here, units))
            bits ^= here
        if not bits and not waiting:
            break
    return found


def _named(joined: bytes, units: int) -> ChainHash:
    return ChainHash(joined[(units - 1) * HASH_BYTES : units * HASH_BYTES])
