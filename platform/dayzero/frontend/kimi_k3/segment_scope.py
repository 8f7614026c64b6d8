"""What one scope's texts were turned into: a dictionary that finds again, follows, and forgets.

- Keyed by the text itself, compared byte by byte: no digest stands in for it, so equal means equal.
- An entry knows which long text followed it last: a conversation that is sent again is recognised by comparing
  alone, in half the time that hashing every text takes.
- `evict` takes a text that was not used since the hand of a clock last passed it, or ever: the least recently used
  ones, near enough, without an order to be kept.
- Only dictionaries of strings, bytes and numbers: the garbage collector does not walk those, however many there are.
"""

import sys
from collections.abc import Sequence

# Of CPython 3.11: an entry's slots in four dictionaries right after they have grown, its number and its mark.
ENTRY_OVERHEAD_BYTES = 300
SCOPE_OVERHEAD_BYTES = 1_000
# A shorter text is hashed in no time, and what follows it (a tag, a role) says little.
LONG_CHARACTERS = 128
_IDLE, _USED, _FREE = b"\0", b"\1", b"\2"


class SegmentScope:
    def __init__(self) -> None:
        self.size_bytes = SCOPE_OVERHEAD_BYTES
        self._slots: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._ids: dict[int, bytes] = {}
        self._following: dict[int, int] = {}
        self._marks = bytearray()
        self._hand = 0

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, texts: Sequence[str]) -> list[bytes | None]:
        """Each text's ids, None where they are not known."""
        slot_of, text_of, ids_of = self._slots.get, self._texts.get, self._ids.__getitem__
        following, marks = self._following, self._marks
        found: list[bytes | None] = []
        before: int | None = None
        for text in texts:
            if len(text) <= LONG_CHARACTERS:
                slot = slot_of(text)
            else:
                slot = None if before is None else following.get(before)
                if slot is None or text_of(slot) != text:
                    slot = slot_of(text)
                    if before is not None and slot is not None:
                        following[before] = slot
                before = slot
            if slot is None:
                found.append(None)
            else:
                marks[slot] = 1
                found.append(ids_of(slot))
        return found

    def add(self, text: str, ids: bytes) -> None:
        """Nothing happens to a text that is here already."""
        if text in self._slots:
            return
        slot = self._marks.find(_FREE) if len(self._slots) < len(self._marks) else len(self._marks)
        self._marks[slot : slot + 1] = _IDLE
        text = _lean(text)
        self._slots[text] = slot
        self._texts[slot] = text
        self._ids[slot] = ids
        self.size_bytes += entry_bytes(text, ids)

    def evict(self) -> None:
        """Raises KeyError when nothing is left."""
        slot = self._pass(self._hand, len(self._marks))
        if slot < 0:
            slot = self._pass(0, self._hand)
        if slot < 0:
            slot = self._marks.find(_IDLE)
        self._hand = slot + 1
        text, ids = self._texts.pop(slot), self._ids.pop(slot)
        del self._slots[text]
        self._following.pop(slot, None)
        self._marks[slot : slot + 1] = _FREE
        self.size_bytes -= entry_bytes(text, ids)

    def _pass(self, start: int, end: int) -> int:
        """The first idle one from `start` on, or -1. Those before it were used and are idle from now on."""
        slot = self._marks.find(_IDLE, start, end)
        passed = slice(start, end if slot < 0 else slot)
        self._marks[passed] = self._marks[passed].replace(_USED, _IDLE)
        return slot


def entry_bytes(text: str, ids: bytes) -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids) + ENTRY_OVERHEAD_BYTES


def _lean(text: str) -> str:
    """A string that was tokenized carries its UTF-8 with it from then on; a copy of it does not."""
    return text if text.isascii() else text[:-1] + text[-1:]
