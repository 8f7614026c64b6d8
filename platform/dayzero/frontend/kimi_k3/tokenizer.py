"""Text to ids, exactly as the reference does it: slices, pre-tokenizer, byte-level BPE.

- Ids equal tiktoken's over the reference's slices, for every text. Tests hold that against tiktoken itself.
- A text gives text ids only: the encoder knows no special, so nothing a text spells can become one.
- fastokens does the work outside the interpreter lock and over all cores (FASTOKENS_BPE_THREADS bounds them).
- What a scope sent before is remembered for that scope (`segment_cache`).
- Safe to share between threads; a long text takes milliseconds, so event loops call it in one.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from fastokens import Tokenizer

from dayzero.frontend.errors import FrontendError, FrontendLoadError
from dayzero.frontend.kimi_k3.long_s import CONTRACTION, LongS
from dayzero.frontend.kimi_k3.pattern import PATTERN
from dayzero.frontend.kimi_k3.segment_cache import CacheStats, SegmentCache
from dayzero.frontend.kimi_k3.shares import shares
from dayzero.frontend.kimi_k3.slices import slices
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary

CACHE_BYTES = 64 * 1024 * 1024
ID_BYTES = 4
# Waking other threads costs more than they save on less than this.
ALONE_CHARACTERS = 32_768
_SHARED_CACHE = "FASTOKENS_INPUT_CACHE"


class K3Tokenizer:
    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        cache_bytes: int = CACHE_BYTES,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`cache_bytes`: the bound of what is remembered, 0 for nothing. Raises FrontendLoadError."""
        if environ.get(_SHARED_CACHE, "0") not in ("", "0"):
            raise FrontendLoadError(
                f"unset {_SHARED_CACHE}: it shares texts between tenants, and dayzero has a cache per tenant"
            )
        self.vocabulary = vocabulary
        self._cache = SegmentCache(cache_bytes)
        self._long_s = LongS(vocabulary.ranks)
        try:
            fast = Tokenizer.from_tiktoken(str(vocabulary.path), pattern=PATTERN, special_tokens={})
        except ValueError as e:
            raise FrontendLoadError(
                f"fastokens cannot use the vocabulary {vocabulary.path}: {e}; fetch it again"
            ) from e
        self._batch: Callable[[list[str]], tuple[bytes, bytes]] = fast.encode_batch_flat

    def encode(self, texts: Sequence[str], *, scope: str = "") -> list[bytes]:
        """Each text's ids as little-endian uint32. `scope`: whose texts these are.

        Raises FrontendError for a lone surrogate, which no UTF-8 can spell.
        """
        found = self._cache.get(scope, texts)
        missing = list(dict.fromkeys(text for text, ids in zip(texts, found, strict=True) if ids is None))
        if not missing:
            return found  # type: ignore[return-value]  # none is None
        fresh = dict(zip(missing, self._encode(missing), strict=True))
        self._cache.put(scope, fresh.items())
        return [fresh[text] if ids is None else ids for text, ids in zip(texts, found, strict=True)]

    def warm(self) -> None:
        """The first text a process encodes costs a tenth of a second, for tables and threads: let it be this one."""
        self._encode(["Warm-up, 123 lines of text.\n" * 5_000, "漢字かな\u3000Ça va? "])

    def cache_stats(self) -> CacheStats:
        return self._cache.stats()

    def _encode(self, texts: list[str]) -> list[bytes]:
        try:
            if any(CONTRACTION in text for text in texts if not text.isascii()):
                return [self._long_s.encode(slices(text), self._batch) for text in texts]
            if sum(map(len, texts)) <= ALONE_CHARACTERS:
                return [self._batch(slices(text))[0] for text in texts]
            parts = [[share for part in slices(text) for share in shares(part)] for text in texts]
            ids, offsets = self._batch([part for of_text in parts for part in of_text])
        except UnicodeEncodeError:
            raise FrontendError(
                "a text has a lone surrogate, which is no character: send valid Unicode", param="messages"
            ) from None
        if len(parts) == 1:
            return [ids]
        starts = np.cumsum([0, *(len(of_text) for of_text in parts)])
        ends = (np.frombuffer(offsets, dtype="<u8")[starts] * ID_BYTES).tolist()
        return [ids[start:end] for start, end in pairwise(ends)]
