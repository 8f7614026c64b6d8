"""SimulatedOutput: the ids a simulated engine generates for a request. Pure and deterministic.

- A function of the prompt, the sampling parameters and the position alone: no replica, no batch, no clock. A
  request that goes on elsewhere (`continuation_tokens`) goes on with the very ids it would have got.
- What is said is the voice's plan; the stop id ends it where the plan ends, unless `ignore_eos`. `min_tokens`,
  `max_tokens` and `stop_token_ids` hold as in a real engine.
- With temperature 0 the seed does not matter. Log probabilities are made up, but in order and below zero.
- Penalties and `logit_bias` change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from dayzero.engine.types import EngineRequest, Finish, GrammarKind, TokenLogprob
from dayzero.engine.voice import Plan, Voice, request_key

_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class OutputVoice:
    """Random ids of `text_ids`. `output_tokens`: least and most ids of an answer, the stop id included."""

    text_ids: tuple[int, ...]
    stop_id: int
    output_tokens: tuple[int, int] = (16, 256)

    def __post_init__(self) -> None:
        least, most = self.output_tokens
        if not 1 <= least <= most:
            raise ValueError(
                f"output_tokens must be (least, most) with 1 <= least <= most, not {self.output_tokens}"
            )
        if len(set(self.text_ids)) < 2:
            raise ValueError("text_ids needs two ids or more")
        if self.stop_id in self.text_ids:
            raise ValueError(
                f"the stop id {self.stop_id} stands among text_ids; an answer would end at random"
            )

    @classmethod
    def of(
        cls, text_ids: Sequence[int], stop_id: int, output_tokens: tuple[int, int] = (16, 256)
    ) -> "OutputVoice":
        return cls(tuple(int(i) for i in text_ids), stop_id, output_tokens)

    @property
    def grammars(self) -> frozenset[GrammarKind]:
        return frozenset()

    def plan(self, request: EngineRequest, room_tokens: int) -> Plan:  # noqa: ARG002 it may say more than fits
        key = request_key(request)
        least, most = self.output_tokens
        return RandomText(key, self.text_ids, least + key % (most - least + 1) - 1)


@dataclass(slots=True)
class RandomText:
    """A plan of ids drawn from `text_ids`, in chunks, so that no position depends on how the one before was found."""

    key: int
    text_ids: Sequence[int]
    end: int
    cut: bool = False
    _chunk: list[int] = field(init=False, default_factory=list)
    _chunk_start: int = field(init=False, default=-1)

    def id_at(self, position: int) -> int:
        start = position - position % _CHUNK_TOKENS
        if start != self._chunk_start:
            dice = np.random.Generator(np.random.Philox(key=[self.key, start]))
            draws = dice.integers(0, len(self.text_ids), size=_CHUNK_TOKENS)
            self._chunk = [self.text_ids[i] for i in draws.tolist()]
            self._chunk_start = start
        return self._chunk[position - start]


@dataclass(slots=True)
class SimulatedOutput:
    """One request's output. `room_tokens`: how many ids the model's context leaves."""

    voice: Voice
    request: EngineRequest
    room_tokens: int
    count: int = 0
    finish: Finish | None = None
    _plan: Plan = field(init=False)
    _key: int = field(init=False)

    def __post_init__(self) -> None:
        """Raises what the voice raises."""
        self._plan = self.voice.plan(self.request, self.room_tokens)
        self._key = request_key(self.request)

    def next(self) -> int:
        """The next id; sets `finish` when it is the last. Not to be called after that."""
        assert self.finish is None, "the output has ended"
        sampling, plan = self.request.sampling, self._plan
        position = self.request.continuation_tokens + self.count
        may_stop = self.count >= sampling.min_tokens
        may_end = may_stop and not sampling.ignore_eos
        if position >= plan.end and may_end and not plan.cut:
            token_id = self.voice.stop_id
            self.finish = Finish.STOP
        else:
            token_id = plan.id_at(position)
            if token_id in sampling.stop_token_ids:
                if may_stop:
                    self.finish = Finish.STOP
                else:
                    token_id = self._other(token_id)
        self.count += 1
        met_limit = self.count >= min(sampling.max_tokens, self.room_tokens)
        if self.finish is None and (met_limit or (plan.cut and position + 1 >= plan.end and may_end)):
            self.finish = Finish.LENGTH
        return token_id

    def logprob(self, token_id: int) -> TokenLogprob:
        """A made-up log probability of the id just given, with the alternatives that were asked for."""
        wanted = self.request.sampling.logprobs or 0
        ids = self.voice.text_ids
        first = xxhash.xxh3_64_intdigest(self.count.to_bytes(8, "little"), seed=self._key)
        own = -(1 + first % 1000) / 1000
        top = [(token_id, own)] if wanted else []
        at = first % len(ids)
        while len(top) < min(wanted, len(ids)):
            if ids[at] != token_id:
                top.append((ids[at], own - 0.5 * len(top)))
            at = (at + 1) % len(ids)
        return TokenLogprob(token_id, own, tuple(top))

    def _other(self, token_id: int) -> int:
        """An id in place of a stop id that may not be given yet; the stop id itself if all of them stop."""
        ids, stops = self.voice.text_ids, self.request.sampling.stop_token_ids
        at = token_id % len(ids)
        return next((i for i in (*ids[at:], *ids[:at]) if i not in stops), token_id)
