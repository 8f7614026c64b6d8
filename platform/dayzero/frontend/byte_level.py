"""GPT-2's alphabet, in which byte-level tokenizers spell bytes as characters."""

from typing import Final

_PRINTABLE = frozenset({*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)})
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

CHARACTERS: Final = tuple(
    chr(byte if byte in _PRINTABLE else 0x100 + _OTHERS.index(byte)) for byte in range(256)
)
"""By byte: printable Latin-1 stands for itself, the other bytes for U+0100 onwards in order."""
