"""Random conversations, and a follower of one engine's cache that predicts what it will report."""

import random
from dataclasses import dataclass, field

import numpy as np

from dayzero.engine.kv_events import BlockRemoved
from dayzero.engine.translation import ChainTranslator
from dayzero.engine.types import EngineRequest, Sampling, pack_ids
from dayzero.router.chain import Chain, Namespace
from dayzero.router.residency import Residency


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its prompt, and the conversation it belongs to."""

    ids: np.ndarray
    salt: str
    answer_tokens: int


@dataclass(slots=True)
class Talks:
    """Turns of conversations that share beginnings, are taken up again, repeated, or stand alone; two tenants.

    `longest_tokens`: of prompt and answer.
    """

    seed: int
    longest_tokens: int
    answers: tuple[int, ...]
    vocabulary: range
    _dice: random.Random = field(init=False)
    _roots: list[np.ndarray] = field(init=False)
    going: list[tuple[np.ndarray, str]] = field(init=False, default_factory=list)

    def __post_init__(self):
        self._dice = random.Random(self.seed)
        longest = self.longest_tokens
        self._roots = [self.random(longest * share // 10) for share in (1, 2, 3, 4)]

    def random(self, tokens) -> np.ndarray:
        ids = np.random.default_rng(self._dice.getrandbits(32))
        return ids.integers(self.vocabulary.start, self.vocabulary.stop, size=tokens, dtype=np.uint32)

    def next(self) -> Turn:
        dice, answer = self._dice, self._dice.choice(self.answers)
        fresh = self.random(dice.randrange(1, self.longest_tokens // 8))
        kind = dice.random()
        ids, salt = np.concatenate([dice.choice(self._roots), fresh]), dice.choice(("", "", "tenant"))
        if self.going and kind < 0.5:
            before, salt = dice.choice(self.going[-6:])
            ids = np.concatenate([before, fresh]) if kind < 0.4 else before
        elif kind > 0.9:
            ids = self.random(dice.randrange(1, self.longest_tokens // 2))
        room = self.longest_tokens - answer
        return Turn(ids[:room], salt, answer)

    def answered(self, turn: Turn, answer) -> None:
        whole = np.concatenate([turn.ids, np.asarray(answer, dtype=np.uint32)])
        if len(whole) < self.longest_tokens - 2 * max(self.answers):
            self.going.append((whole, turn.salt))
            del self.going[:-12]


class Followed:
    """One engine's cache as the router sees it: events in, predictions out."""

    def __init__(self, life):
        self.life = life
        self.translator = ChainTranslator(life)
        self.residency = Residency()
        self.residency.begin(life)
        self.evictions = 0

    def take(self, batch):
        self.evictions += sum(len(e.hashes) for e in batch.events if isinstance(e, BlockRemoved))
        self.residency.apply(self.life.replica, self.translator.translate(batch))

    def request(self, name, turn: Turn) -> EngineRequest:
        """As the replica takes it: remembered before the engine has it."""
        sampling = Sampling(max_tokens=turn.answer_tokens, temperature=0.0, ignore_eos=True)
        request = EngineRequest(
            request_id=name, prompt_ids=pack_ids(turn.ids), sampling=sampling, salt=turn.salt
        )
        self.translator.admit(request)
        return request

    def reusable(self, ids, salt="") -> int:
        unit = self.life.layout.unit_tokens
        chain = Chain.of(pack_ids(ids), Namespace(self.life.model, unit, salt))
        return self.residency.reusable({unit: chain}, len(ids))[self.life.replica]

    def check(self):
        """What is held is what a snapshot says, and nothing went for want of room or of sense."""
        copy = Residency()
        copy.begin(self.life)
        copy.replace(self.life.replica, self.translator.held())
        counts = self.residency.counts()
        assert copy.counts() == counts
        assert (counts.evicted, counts.voided, self.translator.unresolved) == (0, {}, 0)
