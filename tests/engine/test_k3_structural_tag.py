"""The structural tag itself, over the vocabulary shipped here: what xgrammar lets through is read by our own decoder."""

import json
import random

import pytest

from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import ResponseFormat, ResponseFormatKind, Tool, ToolChoice
from dayzero.frontend.events import FinishReason, fold
from dayzero.frontend.kimi_k3.decoder import KimiK3Decoder
from dayzero.frontend.kimi_k3.grammar import GrammarTool, TurnGrammar
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED
from dayzero.frontend.protocol import Channel, Expected
from dayzero.serving.engines.vllm_kimi_k3 import kimi_k3_tag
from dayzero.serving.k3_tokenizer import TOKENIZER_FILES, ensure_tokenizer, write_tokenizer
from tests.engine.k3_requests import schema
from tests.engine.vllm_support import needs_vllm

jsonschema = pytest.importorskip("jsonschema")
pytestmark = needs_vllm

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 3}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER = GrammarTool("weather", CITY)
RESPONSE_OPEN = ["<|close|>", "think", "<|sep|>", "<|open|>", "response", "<|sep|>"]
END = ["<|close|>", "message", "<|sep|>", "<|end_of_msg|>"]
CALL = ["<|open|>", 'call tool="weather" index="1"', "<|sep|>"]
CITY_IS = ["<|open|>", 'argument key="city" type="string"', "<|sep|>"]
ARGUMENT_END = ["<|close|>", "argument", "<|sep|>"]
CALL_END = ["<|close|>", "call", "<|sep|>"]


class Machine:
    """xgrammar as vLLM uses it: the tokenizer from its folder, the stop id from the request."""

    def __init__(self, folder):
        import xgrammar
        from transformers import AutoTokenizer

        self.vocabulary = load_vocabulary(SHIPPED)
        self.specials = self.vocabulary.specials
        write_tokenizer(folder, self.vocabulary)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=self.vocabulary.size)
        self._compiler = xgrammar.GrammarCompiler(self.info)
        self._names = {name: token for token, name in self.specials.names().items()}

    def matcher(self, grammar):
        import xgrammar

        tag = kimi_k3_tag(grammar.encode(), self.vocabulary.size)
        compiled = self._compiler.compile_structural_tag(tag)
        return xgrammar.GrammarMatcher(compiled, override_stop_tokens=[self.specials.end_of_msg])

    def ids(self, *parts):
        """Names of specials are those; any other text goes byte by byte."""
        found = []
        for part in parts:
            ranks = self.vocabulary.ranks
            found += (
                [self._names[part]] if part in self._names else [ranks[bytes([b])] for b in part.encode()]
            )
        return found

    def accepts(self, grammar, *parts):
        matcher = self.matcher(grammar)
        return all(matcher.accept_token(token) for token in self.ids(*parts))

    def walk(self, grammar, seed, most=2000):
        """Random ids that the grammar lets through, to its end."""
        import numpy as np
        import xgrammar

        matcher, dice = self.matcher(grammar), np.random.default_rng(seed)
        mask = xgrammar.allocate_token_bitmask(1, self.vocabulary.size)
        ids = []
        while not matcher.is_terminated():
            assert len(ids) < most, "the turn does not end"
            matcher.fill_next_token_bitmask(mask)
            bits = np.unpackbits(mask.numpy()[0].view(np.uint8), bitorder="little")[: self.vocabulary.size]
            token = int(dice.choice(np.flatnonzero(bits)))
            assert matcher.accept_token(token)
            ids.append(token)
        return ids


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(tmp_path_factory.mktemp("tokenizer"))


def test_the_tokenizer_gives_every_text_id_its_bytes_and_no_special_a_text(machine):
    decoded = machine.info.decoded_vocab
    assert machine.info.vocab_size == machine.vocabulary.size
    assert decoded[: machine.specials.ranks] == list(
        machine.vocabulary.table.visible[: machine.specials.ranks]
    )
    for special in decoded[machine.specials.ranks :]:
        with pytest.raises(UnicodeDecodeError):
            special.decode()
    assert machine.info.stop_token_ids == [machine.specials.end_of_msg]


REQUIRED = TurnGrammar(start=Channel.THINK, tools=(WEATHER,), calls="required")
WHOLE_CALL = [*CALL, *CITY_IS, "Ulm", *ARGUMENT_END, *CALL_END]
TOOLS = ["<|open|>", "tools", "<|sep|>"]
TOOLS_END = ["<|close|>", "tools", "<|sep|>"]
BEFORE = ["hm", *RESPONSE_OPEN, "so", "<|close|>", "response", "<|sep|>"]


def test_a_forced_call_comes_after_think_and_response_are_closed(machine):
    assert machine.accepts(REQUIRED, *BEFORE, *TOOLS, *WHOLE_CALL, *TOOLS_END, *END)
    assert not machine.accepts(REQUIRED, "hm", *TOOLS)
    assert not machine.accepts(REQUIRED, *BEFORE, *END)
    off = TurnGrammar(start=Channel.RESPONSE, tools=(WEATHER,), calls="required")
    assert machine.accepts(
        off, "so", "<|close|>", "response", "<|sep|>", *TOOLS, *WHOLE_CALL, *TOOLS_END, *END
    )
    assert not machine.accepts(off, "so", "<|close|>", "think")


def test_only_ids_are_markers_and_text_may_spell_them(machine):
    spelled = ["<|close|", ">think<|sep|", ">"]
    assert machine.accepts(REQUIRED, *spelled, *RESPONSE_OPEN)
    assert not machine.accepts(REQUIRED, "x", *RESPONSE_OPEN, "<|close|>", "response", "<|sep|", ">")
    for name in ("[BOS]", "<|sep|>", "<|media_pad|>", "<|end_of_msg|>", "<|open|>"):
        assert not machine.accepts(REQUIRED, "x", name), "no special is text"


@pytest.mark.parametrize(
    ("calls", "counts"),
    [("required", {1, 2, 3}), ("one", {1}), ("optional", {0, 1, 2, 3}), ("at_most_one", {0, 1})],
)
def test_the_number_of_calls_is_bounded(machine, calls, counts):
    grammar = TurnGrammar(start=Channel.THINK, tools=(WEATHER,), calls=calls)
    for count in range(4):
        tools = [*TOOLS, *(WHOLE_CALL * count), *TOOLS_END] if count else []
        assert machine.accepts(grammar, *BEFORE, *tools, *END) == (count in counts), count


@pytest.mark.parametrize("value", ["", "abc", "äöü", "<|<"])
def test_a_string_is_as_long_as_its_schema_allows(machine, value):
    before = [*BEFORE, *TOOLS, *CALL, *CITY_IS]
    assert machine.accepts(REQUIRED, *before, value, *ARGUMENT_END)
    assert not machine.accepts(REQUIRED, *before, value + "xxxx", *ARGUMENT_END)


def test_arguments_are_as_many_as_required_at_least_and_declared_at_most(machine):
    argument = [*CITY_IS, "Ulm", *ARGUMENT_END]
    before = [*BEFORE, *TOOLS, *CALL]
    accepted = [
        count for count in range(4) if machine.accepts(REQUIRED, *before, *argument * count, *CALL_END)
    ]
    assert accepted == [1, 2], "twice the same key is what this tag lets through: the decoder names it"
    days = ["<|open|>", 'argument key="days" type="number"', "<|sep|>", "3", *ARGUMENT_END]
    assert machine.accepts(REQUIRED, *before, *days, *argument, *CALL_END)
    assert not machine.accepts(REQUIRED, *before, "<|open|>", 'argument key="other"')


def test_a_key_that_spells_a_marker_is_text(machine):
    odd = GrammarTool("weather", {"properties": {'<|sep|> & "': {"type": "null"}}})
    grammar = TurnGrammar(start=Channel.RESPONSE, tools=(odd,), calls="one")
    key = ["<|sep|", "> &amp; &quot;"]
    before = ["<|close|>", "response", "<|sep|>", *TOOLS, *CALL, "<|open|>", 'argument key="', *key]
    assert machine.accepts(grammar, *before, '" type="null"', "<|sep|>", "null", *ARGUMENT_END, *CALL_END)


def test_a_response_is_json_and_empty_only_before_calls(machine):
    close = ["<|close|>", "response", "<|sep|>"]
    asked = {"start": Channel.RESPONSE, "response": "json_schema", "schema": CITY}
    alone = TurnGrammar(**asked)
    assert machine.accepts(alone, '{"city": "Ulm"}', *close, *END)
    assert not machine.accepts(alone, "Ulm")
    assert not machine.accepts(alone, '{"city": "<|close|>', "<|close|>")
    assert not machine.accepts(alone, *close)
    either = TurnGrammar(**asked, tools=(WEATHER,), calls="optional")
    tools = [*TOOLS, *WHOLE_CALL, *TOOLS_END]
    assert machine.accepts(either, *close, *tools, *END)
    assert machine.accepts(either, '{"city": "Ulm"}', *close, *END)
    assert machine.accepts(either, '{"city": "Ulm"}', *close, *tools, *END)
    assert not machine.accepts(either, *close, *END)


def test_a_bounded_turn_ends_and_is_valid_whatever_is_chosen(machine):
    parameters = {f"tool_{i}": schema(random.Random(i)) for i in range(4)} | {"free": None}
    declared = tuple(Tool(name, {"function": {"parameters": own or {}}}) for name, own in parameters.items())
    tools = tuple(GrammarTool(name, own) for name, own in parameters.items())
    content = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"anyOf": [CITY, {"type": "string"}]}},
    }
    grammars = [
        TurnGrammar(start=Channel.THINK, tools=tools, calls="required", text_characters=9),
        TurnGrammar(start=Channel.RESPONSE, tools=tools, calls="optional", text_characters=0),
        TurnGrammar(start=Channel.THINK, response="json_object", text_characters=9),
        TurnGrammar(start=Channel.THINK, response="json_schema", schema=content, text_characters=9),
    ]
    for seed in range(40):
        grammar = grammars[seed % len(grammars)]
        expected = Expected(
            declared if grammar.tools else (),
            ToolChoice(),
            ResponseFormat(ResponseFormatKind(grammar.response)),
        )
        decoder = KimiK3Decoder(machine.vocabulary, start=grammar.start, expected=expected)
        answer = fold([*decoder.push(machine.walk(grammar, seed)), *decoder.finish(FinishReason.STOP)])
        assert answer.finished.degraded == ()
        assert (grammar.calls == "required") <= bool(answer.tool_calls)
        for call in answer.tool_calls:
            jsonschema.validate(json.loads(call.arguments), parameters[call.name] or {})
        if grammar.response == "json_schema":
            jsonschema.validate(json.loads(answer.content), content)


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ({"type": "string", "maxLength": 2}, ['""', '"äö"'], ['"abc"', '"\x11"', '"\n"']),
        ({"type": "string", "minLength": 2}, ['"ab"', '"abcdef"'], ['"a"', '"\x11a"']),
        ({"type": "string", "maxLength": 5000}, ['"a\\nb"'], ['"\x11"']),
        ({"type": "array", "minItems": 1}, ["[1]", '["a", null]'], ["[]"]),
        ({"type": ["string", "null"], "maxLength": 1}, ["null", '"a"'], ['"ab"']),
        ({"enum": ["a", 1]}, ['"a"', "1"], ['"b"', "2"]),
    ],
)
def test_schemas_inside_json_are_read_rightly(machine, part, good, bad):
    wanted = {"type": "object", "properties": {"p": part}, "required": ["p"]}
    grammar = TurnGrammar(start=Channel.RESPONSE, response="json_schema", schema=wanted)
    for value in good:
        assert machine.accepts(grammar, f'{{"p": {value}}}', "<|close|>"), value
    for value in bad:
        assert not machine.accepts(grammar, f'{{"p": {value}}}', "<|close|>"), value


@pytest.mark.parametrize(
    ("grammar", "field"),
    [
        (TurnGrammar(start=Channel.THINK, response="json_schema", schema={"type": "string", "pattern": "(a"}), "response_format"),
        (TurnGrammar(start=Channel.THINK, response="json_schema", schema={"type": "x"}), "response_format"),
        (
            TurnGrammar(
                start=Channel.THINK,
                tools=(WEATHER, GrammarTool("b", {"properties": {"a": {"items": {"pattern": "(a", "type": "string"}, "type": "array"}}})),
                calls="required",
            ),
            "tools",
        ),
        (
            TurnGrammar(
                start=Channel.THINK, tools=(GrammarTool("b", {"properties": {"a": 7}}),), calls="required"
            ),
            "tools",
        ),
    ],
)  # fmt: skip
def test_a_schema_that_is_none_is_refused_by_field(machine, grammar, field):
    with pytest.raises(InvalidRequestError) as caught:
        kimi_k3_tag(grammar.encode(), machine.vocabulary.size)
    assert caught.value.param == field


def test_what_is_no_grammar_is_refused(machine):
    with pytest.raises(InvalidRequestError):
        kimi_k3_tag("{}", machine.vocabulary.size)


def test_engines_that_start_together_share_one_tokenizer(tmp_path):
    vocabulary = load_vocabulary(SHIPPED)
    first, second = (ensure_tokenizer(tmp_path / "run", vocabulary) for _ in range(2))
    assert first == second
    assert sorted(file.name for file in first.iterdir()) == sorted(TOKENIZER_FILES)
    assert [folder.name for folder in (tmp_path / "run").iterdir()] == [first.name]


def fan(levels, branches):
    """A small schema with branches to the power of levels ways through it."""
    if not levels:
        return {"type": "string"}
    return {"anyOf": [{"$ref": f"#/$defs/d{levels - 1}"}] * branches}


def test_a_small_schema_with_millions_of_ways_through_it_makes_a_small_tag():
    definitions = {f"d{level}": fan(level, 32) for level in range(4)}
    hostile = {"type": "object", "properties": {"a": fan(4, 32)}, "$defs": definitions}
    plain = {"type": "object", "properties": {"a": {"type": "string"}}}
    tags = [
        kimi_k3_tag(
            TurnGrammar(start=Channel.THINK, tools=(GrammarTool("f", one),), calls="one").encode(), 6512
        )
        for one in (hostile, plain)
    ]
    assert tags[0] == tags[1]


def test_an_argument_takes_along_the_definitions_that_it_needs_and_no_others():
    numbers = {
        f"n{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/m{i}"}}} for i in range(100)
    }
    more = {f"m{i}": {"type": "integer"} for i in range(100)}
    properties = {f"p{i}": {"$ref": f"#/$defs/n{i}"} for i in range(100)}
    many = {"type": "object", "properties": properties, "$defs": numbers | more}
    grammar = TurnGrammar(start=Channel.THINK, tools=(GrammarTool("f", many),), calls="one")
    tag = kimi_k3_tag(grammar.encode(), 6512)
    assert len(tag) < 100_000
    assert all(tag.count(f'"m{i}": ') == 1 for i in range(100))


def test_schemas_that_make_too_large_a_grammar_are_refused():
    argument = {"enum": ["x" * 100 + str(i) for i in range(1000)]}
    schema = {"type": "object", "properties": {f"p{i}": argument for i in range(20)}}
    grammar = TurnGrammar(start=Channel.THINK, tools=(GrammarTool("f", schema),), calls="one")
    with pytest.raises(InvalidRequestError, match="bytes") as refused:
        kimi_k3_tag(grammar.encode(), 6512)
    assert refused.value.param == "tools"


def test_a_reference_in_a_circle_is_an_argument_of_any_type():
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 32}},
    }
    grammar = TurnGrammar(start=Channel.THINK, tools=(GrammarTool("t", parameters),), calls="one")
    tag = kimi_k3_tag(grammar.encode(), load_vocabulary(SHIPPED).size)
    for kind in ("string", "number", "boolean", "null", "object", "array"):
        assert json.dumps(f' type="{kind}"')[1:-1] in tag


def test_lengths_inside_json_are_bounded_until_they_would_take_seconds():
    properties = {f"p{i}": {"type": "string", "maxLength": 60} for i in range(40)}
    grammar = TurnGrammar(
        start=Channel.THINK, response="json_schema", schema={"type": "object", "properties": properties}
    )
    tag = kimi_k3_tag(grammar.encode(), load_vocabulary(SHIPPED).size)
    assert tag.count("^.{0,60}$") == 2


def test_only_so_many_lengths_of_arguments_are_counted():
    properties = {f"p{i}": {"type": "string", "maxLength": 1000 + i} for i in range(200)}
    parameters = {"type": "object", "properties": properties}
    grammar = TurnGrammar(start=Channel.THINK, tools=(GrammarTool("t", parameters),), calls="one")
    assert kimi_k3_tag(grammar.encode(), load_vocabulary(SHIPPED).size).count("max_chars") == 96


def test_patterns_and_least_members_are_left_to_the_model_where_they_would_take_seconds():
    properties = {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{{50 + i}}}$"} for i in range(20)}
    wide = {"type": "object", "properties": {f"q{i}": {} for i in range(60)}, "minProperties": 20}
    schema = {"type": "object", "properties": properties | {"a": wide, "b": wide}}
    grammar = TurnGrammar(start=Channel.THINK, response="json_schema", schema=schema)
    tag = kimi_k3_tag(grammar.encode(), load_vocabulary(SHIPPED).size)
    assert tag.count("[a-z]") == 2
    assert tag.count("minProperties") == 1
