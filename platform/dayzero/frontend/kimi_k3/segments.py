"""What a K3 prompt is made of: control ids, and texts that are each encoded on their own (KIMI_K3 section 3).

- A text never becomes a control id, whatever it spells: only a `Fixed` holds control ids, and only this package makes one.
- Where one text ends and the next begins is part of the format: an attribute is four texts, a tag's name is one.
- The same markup comes in every message, so a `Fixed` is encoded once, when the frontend is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dayzero.frontend.kimi_k3.python_json import VALUE_TYPES
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer

Segment = int | str
"""A control id or a text."""

ROLES = ("system", "user", "assistant", "tool")
KINDS = ("tool-declare", "thinking-effort", "tool-choice", "response-format")
"""Of the system messages that the server writes: their `type`."""


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Segments that do not depend on the conversation, and their ids (uint32 buffer)."""

    segments: tuple[Segment, ...]
    ids: bytes


Piece = Fixed | str
"""What a block of a prompt is written in: markup, or one text of the conversation."""


def control(one: int, *, times: int = 1) -> Fixed:
    """A control id alone, or a row of it."""
    return Fixed((one,) * times, one.to_bytes(4, "little") * times)


def escape(value: str) -> str:
    """A value of an attribute: only these two are escaped."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def flat(pieces: Sequence[Piece]) -> list[Segment]:
    """The segments one by one, empty texts left out."""
    segments: list[Segment] = []
    for piece in pieces:
        if isinstance(piece, Fixed):
            segments.extend(piece.segments)
        elif piece:
            segments.append(piece)
    return segments


class Markup:
    """The fixed pieces, named by what they open, close or stand between."""

    def __init__(self, tokenizer: K3Tokenizer) -> None:
        specials = tokenizer.vocabulary.specials
        self._tokenizer = tokenizer
        begin, end = specials.open, specials.close
        sep, end_of_msg = specials.sep, specials.end_of_msg

        self.message = {role: self._fixed(begin, "message", *_attribute("role", role)) for role in ROLES}
        """`<|open|>message role="ROLE"`, more attributes to come."""
        self.plain_message = {
            role: self._fixed(begin, "message", *_attribute("role", role), sep) for role in ROLES
        }
        """The whole open tag of a message without more attributes."""
        self.name = self._fixed(" name", '="')
        self.tool = self._fixed(" tool", '="')
        self.index = self._fixed('"', " index", '="')
        """From behind another attribute's value to this one's."""
        self.quote = self._fixed('"')
        self.sep = control(sep)
        self.quote_sep = self._fixed('"', sep)
        self.kind = {kind: self._fixed(*_attribute("type", kind), sep) for kind in KINDS}
        self.end = self._fixed(end, "message", sep, end_of_msg)

        self.think = self._fixed(begin, "think", sep)
        self.response = self._fixed(begin, "response", sep)
        self.think_to_response = self._fixed(end, "think", sep, begin, "response", sep)
        self.response_end = self._fixed(end, "response", sep)
        self.tools = self._fixed(begin, "tools", sep)
        self.tools_end = self._fixed(end, "tools", sep)
        self.call = self._fixed(begin, "call", " tool", '="')
        self.call_end = self._fixed(end, "call", sep)
        self.argument = self._fixed(begin, "argument", " key", '="')
        self.argument_type = {name: self._fixed('"', *_attribute("type", name), sep) for name in VALUE_TYPES}
        """From behind the key to the value."""
        self.argument_end = self._fixed(end, "argument", sep)
        self.json = self._fixed(begin, "json", *_attribute("type", "object"), sep)
        self.json_end = self._fixed(end, "json", sep)

        self.media_begin = control(specials.media_begin)
        self._media_pad = specials.media_pad
        self.media_content = control(specials.media_content)
        self.media_end = control(specials.media_end)

    def media_pads(self, pads: int) -> Fixed:
        return control(self._media_pad, times=pads)

    def _fixed(self, *segments: Segment) -> Fixed:
        texts = iter(self._tokenizer.encode([one for one in segments if isinstance(one, str)]))
        ids = [next(texts) if isinstance(one, str) else one.to_bytes(4, "little") for one in segments]
        return Fixed(segments, b"".join(ids))


def _attribute(key: str, value: str) -> tuple[str, str, str, str]:
    return f" {key}", '="', escape(value), '"'
