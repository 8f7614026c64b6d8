"""The one place where fastokens differs from the reference: the long s, U+017F, as a contraction.

The pre-tokenizer's `(?i:'s)` also takes an apostrophe and a long s, because the two fold to one letter; fastokens
takes ASCII only. So one piece of the reference is two there, the second of which goes on with what follows.

- Whether an apostrophe and a long s end a word is asked of fastokens itself, with an s in the place of each long s:
  the cuts are the same then. A probe's tokens tell them: only within one piece do a letter, an apostrophe and an s
  become one token. Behind each of those the text is cut.
- What is left is the piece's own merging, which differs only where a token of the vocabulary ends in a letter and an
  apostrophe. Kimi K3's has one, ` I'`: a whole word with its space, so its contraction's ids are known beforehand.
- A vocabulary with such a token that is no whole word is refused: it could not be encoded exactly.
"""

import re
import tempfile
from base64 import b64encode
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from unicodedata import category

import numpy as np
from fastokens import Tokenizer

from dayzero.frontend.errors import FrontendLoadError
from dayzero.frontend.kimi_k3.pattern import PATTERN

CONTRACTION = "'\u017f"
PIECES_AT_ONCE = 16_384
"""fastokens holds the interpreter lock while it takes a list's strings: 60 ms for 300,000 of them."""
_TAILS = (b"'", b"'\xc5", b"'\xc5\xbf")
_WORD = re.compile(rb" (?:[A-Z]*[a-z]+|[A-Z]+)")
_NEVER_ONE_PIECE = re.compile(rb" ?[A-Za-z]*[a-z][A-Z][A-Za-z]*")
_Batch = Callable[[list[str]], tuple[bytes, bytes]]


class LongS:
    """`words`: the words whose ids fastokens gets wrong, with their contraction, and the right ids."""

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        """Raises FrontendLoadError."""
        self.words = {
            head.decode() + CONTRACTION: np.array(_merged(head + _TAILS[-1], ranks), dtype="<u4").tobytes()
            for head in _heads(ranks)
        }
        self._endings = tuple(self.words)
        self._probe = _Probe()

    def encode(self, parts: list[str], batch: _Batch) -> bytes:
        """The ids of a text's slices, one after the other."""
        pieces = [piece for part in parts for piece in self._pieces(part)]
        some = (pieces[start : start + PIECES_AT_ONCE] for start in range(0, len(pieces), PIECES_AT_ONCE))
        return b"".join([self._encode_pieces(few, batch) for few in some])

    def _encode_pieces(self, pieces: list[str], batch: _Batch) -> bytes:
        ids, offsets = batch([piece for piece in pieces if piece not in self.words])
        bounds = pairwise((np.frombuffer(offsets, dtype="<u8") * 4).tolist())
        return b"".join([self.words.get(piece) or ids[slice(*next(bounds))] for piece in pieces])

    def _pieces(self, part: str) -> list[str]:
        """Cut behind each contraction, and before its word where that one is known."""
        cut: list[str] = []
        for piece in self._probe.cut(part):
            if piece.endswith(self._endings):
                word = next(filter(piece.endswith, self._endings))
                cut += (piece.removesuffix(word), word)
            else:
                cut.append(piece)
        return cut


class _Probe:
    """A tokenizer whose tokens are bytes, and letters with `'` and `'s`: it tells where contractions are."""

    def __init__(self) -> None:
        ends = [*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", *range(0x80, 0xC0)]
        tokens = [bytes([value]) for value in range(256)]
        tokens += [bytes([end]) + b"'" for end in ends]
        self._first = len(tokens)
        tokens += [bytes([end]) + b"'s" for end in ends]
        self._lengths = np.array([len(token) for token in tokens])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "probe"
            path.write_bytes(b"".join(b"%s %d\n" % (b64encode(token), i) for i, token in enumerate(tokens)))
            self._batch = Tokenizer.from_tiktoken(
                str(path), pattern=PATTERN, special_tokens={}
            ).encode_batch_flat

    def cut(self, part: str) -> list[str]:
        """Behind each long s that ends a word as a contraction."""
        fragments = part.split(CONTRACTION)
        if len(fragments) == 1:
            return fragments
        ids = np.frombuffer(self._batch(["'s".join(fragments)])[0], dtype="<u4")
        ends = np.cumsum(self._lengths[ids])[ids >= self._first]
        lengths = [len(fragment.encode()) + len("'s") for fragment in fragments[:-1]]
        is_end = np.isin(np.cumsum(lengths), ends)
        pieces: list[str] = []
        done = 0
        for end in (np.flatnonzero(is_end) + 1).tolist():
            pieces.append(CONTRACTION.join([*fragments[done:end], ""]))
            done = end
        return [*pieces, CONTRACTION.join(fragments[done:])]


def _heads(ranks: Mapping[bytes, int]) -> list[bytes]:
    """What comes before the apostrophe in tokens that reach over fastokens' cut."""
    heads = {
        head
        for token in ranks
        for tail in _TAILS
        if token.endswith(tail) and _may_end_a_word(head := token.removesuffix(tail))
    }
    heads = {head for head in heads if not _NEVER_ONE_PIECE.fullmatch(head)}
    for head in heads:
        if not _WORD.fullmatch(head):
            raise FrontendLoadError(
                f"the vocabulary has a token {head + _TAILS[0]!r}, which cannot be encoded exactly: use Kimi K3's"
            )
    return sorted(heads)


def _may_end_a_word(head: bytes) -> bool:
    """Letters and marks do; part of a character may."""
    last = head.decode("utf-8", "replace")[-1:]
    return bool(last) and (category(last)[0] in "LM" or last == "\ufffd")


def _merged(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Byte-pair encoding of one short piece: the pair of the lowest rank first."""
    parts = [piece] if piece in ranks else [bytes([value]) for value in piece]
    while True:
        known = [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not known:
            return [ranks[part] for part in parts]
        at = min(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
