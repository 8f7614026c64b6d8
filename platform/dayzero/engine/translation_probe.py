"""The proof of a translation at registration: a prompt that the engine has just served must stand where its chain says.

- Serve it in two turns: first its first blocks, then all of it. Only then a run that continues another is in the
  proof, and with it that the engine's hashes stand beside the right tokens.
- An engine that fails it is routed by load alone: what it says of its cache is not what it has.
"""

from dataclasses import dataclass
from enum import StrEnum

from dayzero.engine.translation import ChainTranslator
from dayzero.router.chain import Chain, split
from dayzero.router.changes import Held, Tier


class Verdict(StrEnum):
    EQUAL = "equal"
    MISSING = "missing"
    """Nothing is told of a block that was served: no events, or such as cannot be read."""
    DIFFERENT = "different"
    """Something else is told to be where a block was served: other token ids, block size, salt or model."""


@dataclass(frozen=True, slots=True)
class Proof:
    """`words`: for people; holds no hash and no token."""

    verdict: Verdict
    words: str

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.EQUAL


def probe(translator: ChainTranslator, chain: Chain, prompt_tokens: int) -> Proof:
    """Whether every whole block of the prompt, and the state at its tail, is held under its name.

    Raises ValueError where the prompt proves nothing: fewer than two blocks, or a chain of another unit.
    """
    layout = translator.life.layout
    step = layout.block_tokens // layout.unit_tokens
    blocks = prompt_tokens // layout.block_tokens
    if (
        chain.unit_tokens != layout.unit_tokens
        or blocks < 2
        or len(chain) != prompt_tokens // chain.unit_tokens
    ):
        raise ValueError(
            f"a probe is the whole chain of two blocks or more, here {2 * layout.block_tokens} tokens in units of "
            f"{layout.unit_tokens}"
        )
    hashes = chain.hashes()
    tail = (prompt_tokens - 1) // layout.unit_tokens
    held = {part.group: part for part in translator.held() if part.tier is Tier.GPU}
    whole = range(step, blocks * step + 1, step)
    wanted = [(group, whole) for group in layout.attention_groups]
    wanted += [(group, range(tail, tail + 1)) for group in layout.state_groups]
    for group, depths in wanted:
        named = _depths(held.get(group))
        for units in depths:
            if hashes[units - 1] in named:
                continue
            verdict = Verdict.DIFFERENT if units in named.values() else Verdict.MISSING
            return Proof(verdict, _words(verdict, group, units * layout.unit_tokens, translator.unresolved))
    return Proof(Verdict.EQUAL, f"{blocks} blocks of the probe stand where its chain says")


def _depths(part: Held | None) -> dict[bytes, int]:
    if part is None:
        return {}
    units = (int.from_bytes(part.units[at : at + 4], "little") for at in range(0, len(part.units), 4))
    return dict(zip(split(part.hashes), units, strict=True))


def _words(verdict: Verdict, group: int, tokens: int, unresolved: int) -> str:
    where = f"cache group {group}, the prefix of {tokens} tokens"
    if verdict is Verdict.MISSING:
        return (
            f"{where}: the engine told of nothing there, and {unresolved} blocks of its events make no sense"
        )
    return (
        f"{where}: the engine tells of another prefix there; its token ids, block size, salt or order of hashes are "
        "not what this replica believes"
    )
