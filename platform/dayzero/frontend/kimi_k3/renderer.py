"""A conversation → its prompt's ids. Block by block, and only those not seen before are written and tokenized.

- Pure: what is remembered changes the time it takes, never the ids.
- What one scope's conversations left behind is found by that scope alone (`segment_cache`).
- No string of the conversation becomes a control id (`segments`); so the control ids of a prompt tell its structure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dayzero.frontend.conversation import Conversation, Image
from dayzero.frontend.kimi_k3.blocks import name_of
from dayzero.frontend.kimi_k3.images import PATCH_LIMIT
from dayzero.frontend.kimi_k3.layout import Placed, blocks_of
from dayzero.frontend.kimi_k3.segment_cache import CacheStats, SegmentCache
from dayzero.frontend.kimi_k3.segments import Markup, Piece, Segment, flat
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.writer import Writer
from dayzero.frontend.protocol import MediaSpan

CACHE_BYTES = 256 * 1024 * 1024
"""About 60 million tokens of messages."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """`ids`: little-endian uint32 buffer."""

    ids: bytes
    media: tuple[MediaSpan, ...]


class Renderer:
    """Safe to share between threads."""

    def __init__(
        self, tokenizer: K3Tokenizer, *, patch_limit: int = PATCH_LIMIT, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """`cache_bytes`: the bound of what is remembered, 0 for nothing."""
        self._tokenizer = tokenizer
        self._specials = tokenizer.vocabulary.specials
        self._writer = Writer(Markup(tokenizer))
        self._patch_limit = patch_limit
        self._cache = SegmentCache(cache_bytes)

    def render(self, conversation: Conversation, scope: str) -> Rendered:
        """Raises FrontendError naming the field."""
        blocks = list(blocks_of(conversation, self._patch_limit))
        names = [name_of(placed.block) for placed in blocks]
        known = self._cache.get(scope, names)
        fresh = [i for i, ids in enumerate(known) if ids is None]
        written = self._ids([blocks[i] for i in fresh], scope)
        self._cache.put(scope, ((names[i], ids) for i, ids in zip(fresh, written, strict=True)))
        for i, ids in zip(fresh, written, strict=True):
            known[i] = ids
        joined = b"".join(ids for ids in known if ids is not None)
        return Rendered(joined, self._media(joined, [image for placed in blocks for image in placed.images]))

    def segments(self, conversation: Conversation) -> list[Segment]:
        """The prompt as control ids and texts, one by one. Raises FrontendError naming the field."""
        blocks = blocks_of(conversation, self._patch_limit)
        return flat([piece for placed in blocks for piece in self._writer.pieces(placed.block, placed.param)])

    def cache_stats(self) -> CacheStats:
        """Of the blocks; the tokenizer remembers texts beside them."""
        return self._cache.stats()

    def _ids(self, blocks: Sequence[Placed], scope: str) -> list[bytes]:
        """Each block's ids; their texts in one batch, which the tokenizer spreads over the cores."""
        pieces = [self._writer.pieces(placed.block, placed.param) for placed in blocks]
        texts = [piece for of_block in pieces for piece in of_block if isinstance(piece, str)]
        encoded = iter(self._tokenizer.encode(texts, scope=scope))

        def ids(piece: Piece) -> bytes:
            return next(encoded) if isinstance(piece, str) else piece.ids

        return [b"".join([ids(piece) for piece in of_block]) for of_block in pieces]

    def _media(self, ids: bytes, images: Sequence[Image]) -> tuple[MediaSpan, ...]:
        """Where the pictures' pads are: no control id in the prompt is anything but the renderer's."""
        if not images:
            return ()
        array = np.frombuffer(ids, "<u4")
        starts = np.flatnonzero(array == self._specials.media_content) + 1
        ends = np.flatnonzero(array == self._specials.media_end)
        return tuple(
            MediaSpan(image.content, image.digest, image.mime_type, int(start), int(end - start))
            for image, start, end in zip(images, starts, ends, strict=True)
        )
