"""The simulated engine under a grammar: a random turn, read by the decoder and judged by `jsonschema`."""

import json
import random

import pytest

from dayzero.engine.errors import UnsupportedFeatureError
from dayzero.engine.scripted import script
from dayzero.engine.scripted.voice import ScriptedVoice
from dayzero.engine.simulated_kimi_k3 import random_turn
from dayzero.engine.types import EngineRequest, Grammar, GrammarKind, Sampling
from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import ResponseFormat, ResponseFormatKind, Tool, ToolChoice, ToolChoiceMode
from dayzero.frontend.events import FinishReason, fold
from dayzero.frontend.kimi_k3.decoder import KimiK3Decoder
from dayzero.frontend.kimi_k3.grammar import GrammarTool, TurnGrammar
from dayzero.frontend.protocol import Channel, Expected
from tests.engine.k3_requests import schema

jsonschema = pytest.importorskip("jsonschema")

PARAMETERS = {f"tool_{i}": schema(random.Random(i)) for i in range(6)} | {"free": None}
TOOLS = tuple(GrammarTool(name, parameters) for name, parameters in PARAMETERS.items())
DECLARED = tuple(
    Tool(name, {"function": {"name": name, "parameters": parameters or {}}})
    for name, parameters in PARAMETERS.items()
)


def read(grammar, ids, tokenizer):
    """The folded answer, which must not be odd."""
    forced = grammar.calls in ("required", "one")
    expected = Expected(
        DECLARED if grammar.tools else (),
        ToolChoice(ToolChoiceMode.REQUIRED if forced else ToolChoiceMode.AUTO),
        ResponseFormat(ResponseFormatKind(grammar.response)),
    )
    decoder = KimiK3Decoder(tokenizer.vocabulary, start=grammar.start, expected=expected)
    answer = fold([*decoder.push(ids), *decoder.finish(FinishReason.STOP)])
    assert answer.finished.degraded == ()
    assert decoder.tokens.dropped == 0
    for call in answer.tool_calls:
        jsonschema.validate(json.loads(call.arguments), PARAMETERS[call.name] or {})
    return answer


@pytest.mark.parametrize("start", Channel)
@pytest.mark.parametrize(
    ("calls", "least", "most"),
    [("none", 0, 0), ("optional", 0, 3), ("required", 1, 3), ("one", 1, 1), ("at_most_one", 0, 1)],
)
def test_calls_are_as_many_as_allowed_and_each_is_valid(small_tokenizer, calls, start, least, most):
    grammar = TurnGrammar(start=start, tools=() if calls == "none" else TOOLS, calls=calls)
    counts = set()
    for seed in range(24):
        ids = random_turn(grammar, small_tokenizer, seed)
        assert ids[-1] == small_tokenizer.vocabulary.specials.end_of_msg
        answer = read(grammar, ids, small_tokenizer)
        assert bool(answer.reasoning) == (start is Channel.THINK)
        counts.add(len(answer.tool_calls))
    assert (min(counts), max(counts)) == (least, most)


@pytest.mark.parametrize("response", ["json_object", "json_schema"])
@pytest.mark.parametrize("calls", ["none", "optional", "required"])
def test_the_response_is_of_its_form_or_empty_before_calls(small_tokenizer, response, calls):
    wanted = PARAMETERS["tool_1"] if response == "json_schema" else {"type": "object"}
    tools = () if calls == "none" else TOOLS
    grammar = TurnGrammar(
        start=Channel.THINK,
        tools=tools,
        calls=calls,
        response=response,
        schema=wanted if response == "json_schema" else None,
    )
    for seed in range(24):
        answer = read(grammar, random_turn(grammar, small_tokenizer, seed), small_tokenizer)
        if answer.content or not answer.tool_calls:
            jsonschema.validate(json.loads(answer.content), wanted)


def test_free_text_keeps_its_bound(small_tokenizer):
    grammar = TurnGrammar(start=Channel.THINK, text_characters=5)
    for seed in range(8):
        answer = read(grammar, random_turn(grammar, small_tokenizer, seed), small_tokenizer)
        assert len(answer.reasoning) <= 5
        assert len(answer.content) <= 5


def test_a_seed_repeats_a_turn(small_tokenizer):
    grammar = TurnGrammar(start=Channel.THINK, tools=TOOLS, calls="required")
    assert random_turn(grammar, small_tokenizer, 7) == random_turn(grammar, small_tokenizer, 7)


@pytest.mark.parametrize(
    ("grammar", "field"),
    [
        (TurnGrammar(start=Channel.THINK, tools=(GrammarTool("t", {"not": {}}),), calls="one"), "tools"),
        (TurnGrammar(start=Channel.THINK, response="json_schema", schema={"not": {}}), "response_format"),
    ],
)
def test_a_schema_beyond_it_is_refused_by_field(small_tokenizer, grammar, field):
    with pytest.raises(UnsupportedFeatureError) as caught:
        random_turn(grammar, small_tokenizer, 0)
    assert caught.value.param == field


def request(grammar):
    return EngineRequest(
        request_id="r", prompt_ids=b"\x01\x00\x00\x00", sampling=Sampling(max_tokens=64), grammar=grammar
    )


def test_the_scripted_voice_obeys_a_grammar_and_refuses_what_is_none(small_tokenizer):
    voice = ScriptedVoice(small_tokenizer, script.load(None))
    grammar = TurnGrammar(start=Channel.RESPONSE, tools=TOOLS, calls="one")
    plan = voice.plan(request(Grammar(GrammarKind.KIMI_K3, grammar.encode())), 64)
    ids = [plan.id_at(i) for i in range(plan.end)]
    answer = read(grammar, [*ids, voice.stop_id], small_tokenizer)
    assert len(answer.tool_calls) == 1
    with pytest.raises(InvalidRequestError) as caught:
        voice.plan(request(Grammar(GrammarKind.KIMI_K3, "{}")), 64)
    assert caught.value.param == "grammar"
