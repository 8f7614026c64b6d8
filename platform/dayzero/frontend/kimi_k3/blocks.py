"""The blocks of a prompt: one a message, each a value that is rendered on its own, whatever stands around it.

- A block holds all that its ids depend on and nothing else, so equal blocks are equal ids: no id of a call, no place
  in the conversation, no picture's bytes.
- A block's name is a digest of it: what is remembered of a conversation is ids under such names, not its words.
"""

from hashlib import blake2b
from typing import Literal

import msgspec

NAME_BYTES = 24


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """A picture by what of it is in the prompt. `pads`: its placeholder ids."""

    width_px: int
    height_px: int
    pads: int


Content = tuple[str | Picture, ...]


class Said(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A system or user message. `kind`: of those that the server writes, the message's `type`."""

    role: Literal["system", "user"]
    content: Content
    name: str | None = None
    kind: str | None = None


class Call(msgspec.Struct, frozen=True, array_like=True):
    """`arguments`: raw, as the client sent them."""

    tool: str
    arguments: str


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An assistant's message. `thinking`: whether this prompt has think channels. `left_open`: to be continued."""

    thinking: bool
    content: Content
    reasoning: str = ""
    name: str | None = None
    calls: tuple[Call, ...] = ()
    left_open: bool = False


class Result(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A tool's result. `index`: counted from 1 since the last assistant message."""

    tool: str
    index: int
    content: Content


class Opening(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The generation prompt."""

    thinking: bool


Block = Said | Answer | Result | Opening


def name_of(block: Block) -> str:
    """Equal for equal blocks only, as far as a digest of 192 bits can tell."""
    try:
        written = _encoder.encode(block)
    except UnicodeEncodeError:  # half of a surrogate pair, which `repr` escapes
        written = repr(block).encode()
    return blake2b(written, digest_size=NAME_BYTES).hexdigest()


_encoder = msgspec.msgpack.Encoder()
