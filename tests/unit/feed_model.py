"""A model of residency for tests of the feed: sets of hashes by replica, by the words of `Residency`'s contract."""

from collections.abc import Iterable

from dayzero.router.chain import split
from dayzero.router.changes import Change, Cleared, Held, Layout, Life, Stored, Tier


def life(replica: str = "a", incarnation: str = "1", model: str = "m") -> Life:
    return Life(
        replica=replica,
        incarnation=incarnation,
        model=model,
        layout=Layout(unit_tokens=32, block_tokens=32, attention_groups=(0,)),
        blocks=1000,
    )


def hashed(*numbers: int) -> bytes:
    """Numbers as joined 16-byte hashes."""
    return b"".join(number.to_bytes(16, "big") for number in numbers)


def held_of(hashes: Iterable[bytes]) -> tuple[Held, ...]:
    hashes = sorted(hashes)
    return (Held(0, Tier.GPU, b"".join(hashes), bytes(4 * len(hashes))),)


def change(truth: set[bytes], what: Change) -> None:
    if isinstance(what, Cleared):
        truth.clear()
    elif isinstance(what, Stored):
        truth |= set(split(what.hashes))
    else:
        truth -= set(split(what.hashes))


class SetIndex:
    """What a gateway believes."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.held: dict[str, set[bytes]] = {}

    def begin(self, life: Life) -> None:
        if self.lives.get(life.replica) != life:
            self.held[life.replica] = set()
        self.lives[life.replica] = life

    def apply(self, replica: str, changes: Iterable[Change]) -> None:
        for what in changes:
            change(self.held[replica], what)

    def replace(self, replica: str, held: Iterable[Held]) -> None:
        self.held[replica] = {one for part in held for one in split(part.hashes)}

    def forget(self, replica: str) -> None:
        self.held[replica] = set()

    def drop(self, replica: str) -> None:
        del self.lives[replica]
        del self.held[replica]
