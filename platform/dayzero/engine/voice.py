"""Voice: what a simulated engine says. The seam between its scheduling, which knows counts, and its words.

- A plan is a pure function of the prompt, the sampling parameters and the voice: no replica, no batch, no clock. Its
  positions count from the first id that anyone generated for the request, so that one which goes on elsewhere
  (`continuation_tokens`) is planned there to the same ids.
- A voice plans the whole answer as if nothing cut it; `SimulatedOutput` applies limits and stop ids.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

import xxhash

from dayzero.engine.types import EngineRequest, GrammarKind, Sampling

WORDS: Final = 2048
_WORD = re.compile(rb" [a-z]{3,10}")


class Plan(Protocol):
    """One answer."""

    @property
    def end(self) -> int:
        """How many ids it has before the stop id; with `cut`, before the limit that it meets. 1 or more then."""
        ...

    @property
    def cut(self) -> bool:
        """It ends without a stop id, as an answer does that meets its limit."""
        ...

    def id_at(self, position: int) -> int:
        """At any position; from `end` on it is text, for a request that may not end yet."""
        ...


class Voice(Protocol):
    @property
    def stop_id(self) -> int: ...

    @property
    def text_ids(self) -> Sequence[int]:
        """Ids of plain text, two or more: alternatives in log probabilities, and in place of an id that may not come."""
        ...

    @property
    def grammars(self) -> frozenset[GrammarKind]:
        """The kinds of grammar that its answers obey."""
        ...

    def plan(self, request: EngineRequest, room_tokens: int) -> Plan:
        """`room_tokens`: how many ids the model's context leaves. Raises InvalidRequestError for a grammar that is none."""
        ...


def request_key(request: EngineRequest) -> int:
    """64 bits that name a request's answer: its prompt without what was generated already, and how it is sampled."""
    end = len(request.prompt_ids) - 4 * request.continuation_tokens
    with memoryview(request.prompt_ids) as ids:
        return xxhash.xxh3_64_intdigest(ids[:end], seed=_sampling_key(request.sampling))


def _sampling_key(sampling: Sampling) -> int:
    """With temperature 0 the seed does not matter."""
    if sampling.temperature == 0:
        return 0
    fields = (sampling.seed, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    return xxhash.xxh3_64_intdigest(repr(fields).encode())


def words(tokens: Iterable[tuple[int, bytes]]) -> tuple[int, ...]:
    """The first `WORDS` lower-case words among a vocabulary's ids and their texts."""
    return tuple(islice((i for i, text in tokens if _WORD.fullmatch(text)), WORDS))
