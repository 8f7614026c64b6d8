"""Token ids to text, incrementally and exactly.

- The text is that of the whole byte string: pushed in any split, it equals `bytes.decode("utf-8", "replace")`.
- Never part of a code point: bytes that may still become one are held until they do, or until `finish`.
- An id outside the table has no bytes: an engine may pad its vocabulary, and a decoder never raises.
- Linear: each byte is looked at once.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What each id stands for. `visible` is empty for hidden ids; `spelled` spells those out (logprobs show them).

    `strip_leading_space`: the tokenizer writes a space before the first word of a text; it is taken off again.
    `texts`: the visible bytes that are whole characters, as text; None for the others.
    """

    visible: tuple[bytes, ...] = field(repr=False)
    spelled: tuple[bytes, ...] = field(repr=False)
    strip_leading_space: bool = False
    texts: tuple[str | None, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(_whole_text(content) for content in self.visible))

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        known = range(len(self.visible))
        return b"".join([self.visible[i] for i in ids if i in known])

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """A token on its own: U+FFFD for part of a code point, and the bytes; empty for an unknown id."""
        content = self.spelled[token_id] if 0 <= token_id < len(self.spelled) else b""
        return content.decode("utf-8", "replace"), content


def _whole_text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


class Detokenizer:
    """The text of one stream of ids."""

    __slots__ = ("_holds", "_strip", "_table", "_text_at", "_utf8")

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._text_at = table.texts.__getitem__
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._holds = False
        self._strip = table.strip_leading_space

    @property
    def held(self) -> bytes:
        """The beginning of a code point that is not whole yet."""
        return self._utf8.getstate()[0] if self._holds else b""

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain after these ids; may be empty."""
        if self._holds or self._strip:
            return self._push_bytes(ids)
        try:
            # Nearly always every token is whole characters; a None or an unknown id raises.
            return "".join(map(self._text_at, ids))  # type: ignore[arg-type]
        except (TypeError, IndexError):
            return self._push_bytes(ids)

    def finish(self) -> str:
        """What was held: an incomplete sequence becomes U+FFFD. The stream may go on afterwards, from nothing held."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._holds = False
        return text

    def _push_bytes(self, ids: Sequence[int]) -> str:
        text = self._utf8.decode(self._table.bytes_of(ids))
        self._holds = bool(self._utf8.getstate()[0])
        if text and self._strip:
            self._strip = False
            return text.removeprefix(" ")
        return text
