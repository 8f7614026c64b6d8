"""A random turn of Kimi K3 that obeys a grammar: what the simulated engine says for a request that has one. Pure.

- Valid from the channel that the prompt left open to the stop id, calls against their tools' schemas included.
- Free text is words, within `text_characters` where that is set.
"""

import json
import random
from collections.abc import Mapping
from typing import Any, Final

from dayzero.engine.errors import UnsupportedFeatureError
from dayzero.engine.random_json import random_json
from dayzero.engine.scripted.turn import Said, SaidCall, ids_of, turn
from dayzero.engine.types import unpack_ids
from dayzero.frontend.kimi_k3.grammar import GrammarTool, TurnGrammar
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer

_WORDS: Final = (
    "the",
    "answer",
    "is",
    "here",
    "and",
    "we",
    "look",
    "at",
    "each",
    "part",
    "of",
    "it",
    "again",
)
_MOST_WORDS: Final = 16
_MOST_CALLS: Final = 3
_FREE: Final = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "parts": {"type": "array", "items": {"type": "number"}},
    },
}
"""What a tool without a schema is called with."""


def random_turn(grammar: TurnGrammar, tokenizer: K3Tokenizer, seed: int) -> list[int]:
    """Its ids, the stop id last. Raises UnsupportedFeatureError naming the field for a schema that is beyond it."""
    dice = random.Random(seed)  # noqa: S311 repeatable on purpose
    calls = _calls(grammar, dice)
    said = Said(_text(grammar, dice), _content(grammar, dice, has_calls=bool(calls)), calls)
    specials = tokenizer.vocabulary.specials
    ids: list[int] = unpack_ids(ids_of(turn(said, grammar.start), specials, tokenizer)).tolist()
    return [*ids, specials.end_of_msg]


def _calls(grammar: TurnGrammar, dice: random.Random) -> tuple[SaidCall, ...]:
    if grammar.calls == "none" or not grammar.tools:
        return ()
    least = 1 if grammar.calls in ("required", "one") else 0
    most = 1 if grammar.calls in ("one", "at_most_one") else _MOST_CALLS
    return tuple(_call(dice.choice(grammar.tools), dice) for _ in range(dice.randint(least, most)))


def _call(tool: GrammarTool, dice: random.Random) -> SaidCall:
    schema = _FREE if tool.parameters is None else {"type": "object"} | tool.parameters
    arguments = random_json(schema, dice, field="tools")
    if not isinstance(arguments, Mapping):
        raise UnsupportedFeatureError.of("tools", "the arguments of a tool are an object")
    return SaidCall(tool.name, arguments)


def _content(grammar: TurnGrammar, dice: random.Random, *, has_calls: bool) -> str:
    if grammar.response == "text":
        return _text(grammar, dice)
    if has_calls and dice.random() < 0.5:
        return ""
    schema: Any = {
        "type": "object",
        "properties": {"answer": {"type": "string"}, "score": {"type": "number"}},
    }
    if grammar.response == "json_schema":
        schema = grammar.schema or {}
    return json.dumps(random_json(schema, dice), ensure_ascii=False)


def _text(grammar: TurnGrammar, dice: random.Random) -> str:
    text = " ".join(dice.choices(_WORDS, k=dice.randint(1, _MOST_WORDS)))
    return text if grammar.text_characters is None else text[: grammar.text_characters]
