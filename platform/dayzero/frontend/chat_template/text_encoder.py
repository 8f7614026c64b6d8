"""Text to ids, as plain text: no control token comes out, whatever the text spells.

- fastokens does the work, outside the interpreter lock; `tokenizers` only where fastokens cannot read the file.
- Ids are those of Hugging Face's tokenizer for the same text, but for white space in runs of more than
  100,000 characters: those are cut there, because the pattern's backtracking gives up on longer ones.
- Text on which the pattern gives up all the same is cut every 25,000 characters, then refused.
- Every id is checked against the control ids before it is handed out.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from fastokens import Tokenizer

from dayzero.frontend.chat_template.vocabulary import Vocabulary
from dayzero.frontend.errors import FrontendError, FrontendLoadError

WHITE_SPACE_RUN_CHARACTERS = 100_000
RETRY_CHARACTERS = 25_000

_log = logging.getLogger(__name__)
_white_space = re.compile(r"\s+")
TokenIds = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]
_Batch = Callable[[list[str]], tuple[bytes, bytes]]


class TextEncoder:
    """`encode` for text anywhere in a prompt. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises FrontendLoadError."""
        self._later = _batch_encoder(vocabulary.later_json)
        same = vocabulary.later_json == vocabulary.text_json
        self._first = self._later if same else _batch_encoder(vocabulary.text_json)
        self._is_control = np.zeros(vocabulary.size, dtype=np.bool_)
        self._is_control[[control.id for control in vocabulary.controls]] = True

    def encode(self, texts: Sequence[str], *, at_start: bool = False) -> list[TokenIds]:
        """Each text's ids. `at_start`: the first one is the prompt's very beginning. Raises FrontendError."""
        if at_start and texts and self._first is not self._later:
            return [*self._encode(texts[:1], self._first), *self._encode(texts[1:], self._later)]
        return self._encode(texts, self._later)

    def _encode(self, texts: Sequence[str], batch: _Batch) -> list[TokenIds]:
        parts = [list(_bounded(text)) for text in texts]
        ids, offsets = self._ids([part for text_parts in parts for part in text_parts], batch)
        if self._is_control[ids].any():
            raise FrontendError("this text cannot be told from a control token", param="messages")
        ends = np.cumsum([len(text_parts) for text_parts in parts], dtype=np.int64)
        return np.split(ids, offsets[ends[:-1]]) if len(ends) else []

    @staticmethod
    def _ids(parts: list[str], batch: _Batch) -> tuple[TokenIds, Offsets]:
        try:
            ids, offsets = batch(parts)
        except ValueError:
            return _ids_in_short_parts(parts, batch)
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)


def _ids_in_short_parts(parts: list[str], batch: _Batch) -> tuple[TokenIds, Offsets]:
    short = [
        [part[i : i + RETRY_CHARACTERS] for i in range(0, len(part), RETRY_CHARACTERS)] for part in parts
    ]
    try:
        ids, offsets = batch([piece for pieces in short for piece in pieces])
    except ValueError:
        raise FrontendError("this text cannot be tokenized: shorten its runs", param="messages") from None
    starts = np.cumsum([0, *(len(pieces) for pieces in short)])
    return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)[starts]


def _bounded(text: str) -> Iterator[str]:
    """The text in parts with no run of white space longer than the limit; linear."""
    done = 0
    if len(text) > WHITE_SPACE_RUN_CHARACTERS:
        for run in _white_space.finditer(text):
            for cut in range(run.start() + WHITE_SPACE_RUN_CHARACTERS, run.end(), WHITE_SPACE_RUN_CHARACTERS):
                yield text[done:cut]
                done = cut
    yield text[done:]


def _batch_encoder(tokenizer_json: str) -> _Batch:
    try:
        fast = Tokenizer.from_json_str(tokenizer_json)
    except ValueError as e:
        _log.warning("fastokens cannot read this tokenizer (%s); using tokenizers, which is slower", e)
        return _slow_batch_encoder(tokenizer_json)

    def batch(texts: list[str]) -> tuple[bytes, bytes]:
        ids, offsets = fast.encode_batch_flat(texts)
        return ids, offsets

    return batch


def _slow_batch_encoder(tokenizer_json: str) -> _Batch:
    try:
        import tokenizers  # noqa: PLC0415  an optional dependency, for rare vocabularies
    except ImportError as e:
        raise FrontendLoadError(
            "fastokens cannot read this tokenizer; install `tokenizers` to serve it"
        ) from e
    try:
        slow = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as e:  # the library raises bare Exception
        raise FrontendLoadError(f"neither fastokens nor tokenizers can read this tokenizer: {e}") from e

    def batch(texts: list[str]) -> tuple[bytes, bytes]:
        ids = [encoding.ids for encoding in slow.encode_batch_fast(texts, add_special_tokens=False)]
        flat = np.array([i for part in ids for i in part], dtype="<u4")
        offsets = np.cumsum([0, *(len(part) for part in ids)], dtype="<u8")
        return flat.tobytes(), offsets.tobytes()

    return batch
