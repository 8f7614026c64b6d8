"""ScriptedVoice: what a simulated Kimi K3 says, as its script has it. See `dayzero.engine.voice` for the promises.

- It reads the prompt's last message, never the whole prompt.
- A request with a grammar gets a random turn that obeys it, whatever the script says.
- Texts that the script leaves open are words of the vocabulary, drawn from the prompt and how it is sampled. Such an
  answer goes on with words where the request does not let it end (`ignore_eos`, `min_tokens`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dayzero.engine.scripted.asked import read
from dayzero.engine.scripted.oddities import DISTORTIONS
from dayzero.engine.scripted.script import Answer, Script, said
from dayzero.engine.scripted.turn import Close, Mark, ids_of, turn
from dayzero.engine.simulated_kimi_k3 import random_turn
from dayzero.engine.simulated_output import RandomText
from dayzero.engine.types import EngineRequest, Grammar, GrammarKind, Sampling, unpack_ids
from dayzero.engine.voice import Plan, request_key, words
from dayzero.errors import InvalidRequestError
from dayzero.frontend.kimi_k3.grammar import TurnGrammar
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer

_REASONING_WORDS = (4, 64)
_CONTENT_WORDS = (4, 160)


@dataclass(frozen=True, slots=True)
class ScriptedPlan:
    """The ids of a turn; beyond them words."""

    ids: Sequence[int]
    more: RandomText
    cut: bool = False

    @property
    def end(self) -> int:
        return len(self.ids)

    def id_at(self, position: int) -> int:
        return self.ids[position] if position < len(self.ids) else self.more.id_at(position)


class ScriptedVoice:
    def __init__(self, tokenizer: K3Tokenizer, script: Script) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.vocabulary
        self._specials = tokenizer.vocabulary.specials
        self._script = script
        self._text_ids = words(enumerate(tokenizer.vocabulary.table.visible))

    @property
    def stop_id(self) -> int:
        return self._specials.end_of_msg

    @property
    def text_ids(self) -> Sequence[int]:
        return self._text_ids

    @property
    def grammars(self) -> frozenset[GrammarKind]:
        return frozenset({GrammarKind.KIMI_K3})

    def plan(self, request: EngineRequest, room_tokens: int) -> Plan:  # noqa: ARG002 it may say more than fits
        key = request_key(request)
        more = RandomText(key, self._text_ids, 0)
        if request.grammar is not None:
            return ScriptedPlan(self._obeying(request.grammar, key), more)
        prompt = unpack_ids(request.prompt_ids)
        asked = read(prompt[: len(prompt) - request.continuation_tokens], self._vocabulary)
        answer = self._script.answer_to(asked)
        dice = random.Random(key)  # noqa: S311 repeatable on purpose
        oddity = self._oddity(answer, dice)
        marks = turn(
            said(answer, self._text(_REASONING_WORDS, dice), self._content(request, dice)), asked.start
        )
        if (
            oddity is None
            and answer.content is None
            and not answer.tool_calls
            and request.sampling.ignore_eos
        ):
            marks = marks[: marks.index(Close("response"))]
        return self._made(marks, answer, oddity, more)

    def _obeying(self, grammar: Grammar, key: int) -> Sequence[int]:
        """A random turn. The stop id, its last, is not of a plan."""
        try:
            turn_grammar = TurnGrammar.decode(grammar.spec)
        except (msgspec.MsgspecError, RecursionError):
            raise InvalidRequestError.of("grammar", "this is no grammar of a Kimi K3 turn") from None
        return random_turn(turn_grammar, self._tokenizer, key)[:-1]

    def _made(self, marks: list[Mark], answer: Answer, oddity: str | None, more: RandomText) -> ScriptedPlan:
        cut = False
        if oddity is not None and (distortion := DISTORTIONS[oddity]).fits(marks):
            marks, cut = distortion.change(marks), distortion.cut
        if answer.finish == "length":
            marks, cut = _half(marks), True
        ids = unpack_ids(ids_of(marks, self._specials, self._tokenizer)).tolist()
        return ScriptedPlan(ids, more, cut and bool(ids))

    def _oddity(self, answer: Answer, dice: random.Random) -> str | None:
        draw = dice.random()
        if answer.oddity is not None:
            return answer.oddity
        for name, share in self._script.oddities.items():
            if draw < share:
                return name
            draw -= share
        return None

    def _content(self, request: EngineRequest, dice: random.Random) -> str:
        sampling: Sampling = request.sampling
        least, most = _CONTENT_WORDS
        needed = sampling.min_tokens + request.continuation_tokens if sampling.min_tokens else 0
        return self._text((max(least, needed), max(most, needed)), dice)

    def _text(self, length_words: tuple[int, int], dice: random.Random) -> str:
        ids = dice.choices(self._text_ids, k=dice.randint(*length_words))
        return self._vocabulary.table.bytes_of(ids).decode().removeprefix(" ")


def _half(marks: list[Mark]) -> list[Mark]:
    """Up to the middle of the last text."""
    place = max((at for at, mark in enumerate(marks) if isinstance(mark, str)), default=None)
    if place is None:
        return marks
    text = marks[place]
    assert isinstance(text, str)
    return [*marks[:place], text[: (len(text) + 1) // 2]]
