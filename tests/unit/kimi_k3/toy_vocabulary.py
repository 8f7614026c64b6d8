"""A small vocabulary of whole words, in which every text id can be told apart by its text."""

from pathlib import Path

from dayzero.frontend.detokenizer import TokenTable
from dayzero.frontend.kimi_k3.specials import SPECIALS, Specials
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary

TAG_WORDS = (
    "think",
    "response",
    "tools",
    "call",
    "argument",
    "json",
    "message",
    "other",
    ' tool="f"',
    ' index="1"',
    ' key="',
    '"',
    ' type="string"',
    ' type="number"',
    ' type="object"',
    " ",
    "\n",
    "{",
    "}",
    "[",
    "]",
    "1",
    ":",
    ",",
)
BYTES = tuple(bytes([b]) for b in (0x80, 0xC3, 0xA9, 0xF0, 0x9F, 0x8C, 0x8D, 0xFF))
SIGNS = tuple(chr(0x4E00 + n) for n in range(400))


def toy_vocabulary():
    tokens = [word.encode() for word in TAG_WORDS] + list(BYTES) + [sign.encode() for sign in SIGNS]
    specials = Specials(len(tokens))
    visible = (*tokens, *[b""] * SPECIALS)
    return Vocabulary(
        path=Path("toy"),
        ranks={token: rank for rank, token in enumerate(tokens)},
        specials=specials,
        digest="",
        table=TokenTable(visible=visible, spelled=visible),
        source="toy",
    )


FIRST_SIGN = len(TAG_WORDS) + len(BYTES)
