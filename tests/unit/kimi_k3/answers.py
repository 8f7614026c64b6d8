"""Answers of Kimi K3, written readably, as ids; and what a decoder makes of them."""

from dataclasses import dataclass, field

import numpy as np

from dayzero.frontend.events import Answer, FinishReason, OrderCheck, fold
from dayzero.frontend.kimi_k3.decoder import KimiK3Decoder
from dayzero.frontend.protocol import Channel, Expected


@dataclass(frozen=True)
class Special:
    """By its place behind the ranks."""

    place: int


BOS, EOS, END, OPEN, CLOSE, SEP = map(Special, range(6))
RESERVED, MEDIA_PAD, PAD = Special(8), Special(21), Special(255)


@dataclass(frozen=True)
class Raw:
    """An id as it is, in the vocabulary or not."""

    id: int


def O(tag):  # noqa: E743, N802
    return (OPEN, tag, SEP)


def C(tag):  # noqa: N802
    return (CLOSE, tag, SEP)


def call(name, *arguments, index=1):
    """`arguments`: (key, type, value) each."""
    children = [
        (O(f'argument key="{key}" type="{kind}"'), value, C("argument")) for key, kind, value in arguments
    ]
    return (O(f'call tool="{name}" index="{index}"'), *children, C("call"))


def ids_of(tokenizer, *pieces, bytewise=False):
    """Text is encoded piece by piece; `bytes` and `bytewise` give a token to each byte."""
    vocabulary = tokenizer.vocabulary
    ids = []
    for piece in pieces:
        match piece:
            case Special(place=place):
                ids.append(vocabulary.specials.ranks + place)
            case Raw(id=raw):
                ids.append(raw)
            case tuple() | list():
                ids += ids_of(tokenizer, *piece, bytewise=bytewise)
            case bytes():
                ids += [vocabulary.ranks[piece[at : at + 1]] for at in range(len(piece))]
            case str() if bytewise:
                ids += ids_of(tokenizer, piece.encode())
            case str():
                ids += np.frombuffer(tokenizer.encode([piece])[0], dtype="<u4").tolist()
    return ids


@dataclass
class Heard:
    """All that a decoder said."""

    answer: Answer
    tokens: object
    stopped: bool
    events: list = field(repr=False)

    @property
    def seen(self):
        """What must not depend on the split."""
        return self.answer, self.tokens, self.stopped


def hear(vocabulary, parts, *, start=Channel.THINK, expected=None, stop=(), finish=FinishReason.STOP):
    """A whole answer, pushed in these parts; the order of its events and the count of its tokens are checked."""
    decoder = KimiK3Decoder(vocabulary, start=start, expected=expected or Expected(), stop=stop)
    check, events, pushed = OrderCheck(), [], 0
    for part in parts:
        events += decoder.push(part)
        pushed += len(part)
        assert decoder.tokens.total == pushed
    events += decoder.finish(finish)
    assert decoder.tokens.total == pushed
    for event in events:
        check.accept(event)
    answer = fold(events)
    assert answer.finished is events[-1]
    return Heard(answer, decoder.tokens, decoder.stopped, events)
