"""A simulated Kimi K3 that follows a script: rules, oddities that the decoder meets by name, and faults with their line."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.errors import EngineStartError
from dayzero.engine.scripted import script
from dayzero.engine.scripted.asked import TAIL_TOKENS, read
from dayzero.engine.scripted.oddities import DISTORTIONS
from dayzero.engine.scripted.voice import ScriptedVoice
from dayzero.engine.simulated_output import SimulatedOutput
from dayzero.engine.types import EngineRequest, Finish, Sampling, pack_ids, unpack_ids
from dayzero.frontend import kimi_k3
from dayzero.frontend.conversation import Conversation, Message, Role, Text, Thinking, Tool, ToolCall
from dayzero.frontend.events import FinishReason, fold
from dayzero.frontend.kimi_k3.oddities import Oddity
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED
from dayzero.frontend.protocol import Channel

WEATHER = Tool(
    "get_weather",
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
)
ROOM = 100_000


@pytest.fixture(scope="module")
def frontend():
    return kimi_k3.load(vocabulary=SHIPPED, environ={})


@pytest.fixture(scope="module")
def tokenizer():
    return K3Tokenizer(load_vocabulary(SHIPPED), environ={})


@pytest.fixture(scope="module")
def shipped(tokenizer):
    return ScriptedVoice(tokenizer, script.load(None))


def user(text):
    return Message(Role.USER, (Text(text),))


def conversation(*messages, tools=(), thinking=True):
    return Conversation(messages, tools=tools, thinking=Thinking(enabled=thinking))


def request(ids, *, continuation=0, **sampling):
    return EngineRequest(
        request_id="r",
        prompt_ids=ids,
        sampling=Sampling(**({"max_tokens": 5000} | sampling)),
        continuation_tokens=continuation,
    )


def output(voice, prompt, **sampling):
    out = SimulatedOutput(voice, request(prompt.ids, **sampling), ROOM)
    ids = []
    while out.finish is None:
        ids.append(out.next())
    return ids, out.finish


def answer(frontend, voice, said, **sampling):
    prompt = frontend.render(said, scope="")
    ids, finish = output(voice, prompt, **sampling)
    decoder = frontend.decoder(prompt)
    ending = FinishReason.LENGTH if finish is Finish.LENGTH else FinishReason.STOP
    return fold([*decoder.push(ids), *decoder.finish(ending)])


def test_what_a_rule_says_is_what_the_decoder_reads(frontend, shipped):
    told = answer(frontend, shipped, conversation(user("What is the capital of FRANCE?")))
    assert told.reasoning == "A question of geography. France's capital is Paris."
    assert told.content == "The capital of France is Paris."
    assert told.finished.degraded == ()
    silent = answer(frontend, shipped, conversation(user("the capital of France"), thinking=False))
    assert (silent.reasoning, silent.content) == ("", told.content)


def test_a_rule_for_tools_holds_only_where_some_are_declared(frontend, shipped):
    told = answer(frontend, shipped, conversation(user("The weather?"), tools=(WEATHER,)))
    (call,) = told.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris", "days": 2})
    assert told.finished.reason is FinishReason.TOOL_CALLS
    assert told.finished.degraded == ()
    without = answer(frontend, shipped, conversation(user("The weather?")))
    assert without.tool_calls == []
    assert without.content
    assert without.finished.degraded == ()


def test_a_tools_result_is_what_was_said_last(frontend, shipped):
    call = ToolCall("functions.get_weather:0", "get_weather", '{"city": "Paris"}')
    result = Message(Role.TOOL, (Text("Sunny weather"),), tool_call_id=call.id)
    history = (user("The weather?"), Message(Role.ASSISTANT, tool_calls=(call,)), result)
    told = answer(frontend, shipped, conversation(*history, tools=(WEATHER,)))
    assert told.content == "That is what the tool found. Is there anything else?"


@pytest.mark.parametrize("oddity", sorted(DISTORTIONS))
def test_every_oddity_can_be_asked_for_and_is_met_by_its_name(frontend, shipped, oddity):
    told = answer(frontend, shipped, conversation(user(f"With the oddity {oddity}."), tools=(WEATHER,)))
    assert oddity in told.finished.degraded
    assert len(told.finished.degraded) <= 3, told.finished.degraded


def test_an_oddity_that_nobody_knows_is_none_and_the_answer_says_so(frontend, shipped):
    told = answer(frontend, shipped, conversation(user("With the oddity of_its_own"), tools=(WEATHER,)))
    assert told.finished.degraded == ()
    assert told.tool_calls == []
    assert told.content.startswith("No script can make an oddity called of_its_own. It can make: argument_")
    assert all(name in told.content for name in DISTORTIONS)


def test_the_page_about_scripts_lists_the_oddities_that_one_can_make_and_those_that_none_can():
    page = (Path(__file__).resolve().parents[2] / "docs" / "kimi-k3-script.md").read_text()
    rows = [
        line.split("|")[1:3] for line in page.split("## Oddities")[1].splitlines() if line.startswith("| `")
    ]
    listed = {name.strip("` "): needs.strip() for names, needs in rows for name in names.split(",")}
    words = {
        (): "nothing",
        ("think",): "reasoning",
        ("tools",): "a call",
        ("call",): "a call",
        ("argument",): "a call with an argument",
        ("think", "tools"): "reasoning and a call",
    }
    assert listed == {name: words[one.needs] for name, one in DISTORTIONS.items()}
    (none_can,) = [line for line in page.splitlines() if line.startswith("No script makes")]
    assert set(re.findall(r"`(\w+)`", none_can)) == {str(oddity) for oddity in Oddity} - set(DISTORTIONS)


def test_oddities_come_as_often_as_their_share_and_the_same_for_the_same_request(frontend, tokenizer):
    odd = ScriptedVoice(
        tokenizer, script.parse("oddities: {think_not_closed: 0.25, sep_bare: 0.25, text_in_tools: 0.5}")
    )
    told = [answer(frontend, odd, conversation(user(f"Number {n}"))).finished.degraded for n in range(200)]
    counts = {name: told.count((name,)) for name in ("think_not_closed", "sep_bare")}
    assert all(30 <= count <= 70 for count in counts.values()), counts
    assert told.count(()) == 200 - sum(counts.values()), "what needs a call is left out where there is none"
    again = [answer(frontend, odd, conversation(user(f"Number {n}"))).finished.degraded for n in range(20)]
    assert again == told[:20]


def test_an_answer_that_meets_its_limit_in_the_script_ends_with_length(frontend, tokenizer):
    cut = ScriptedVoice(
        tokenizer,
        script.parse(
            "default: {reasoning: '', content: 0123456789, finish: length}".replace(
                "0123456789", '"0123456789"'
            )
        ),
    )
    told = answer(frontend, cut, conversation(user("Go")))
    assert told.content == "01234"
    assert told.finished.reason is FinishReason.LENGTH


def test_what_is_left_open_is_words_of_many_lengths(frontend, shipped):
    told = [answer(frontend, shipped, conversation(user(f"Number {n}"))) for n in range(50)]
    assert all(one.finished.degraded == () for one in told)
    lengths = {len(one.content.split()) for one in told}
    assert len(lengths) > 20
    assert all(4 <= length <= 160 for length in lengths)
    assert all(one.reasoning for one in told)


@pytest.mark.parametrize("text", ["Anything", "the weather", "the oddity call_cut"])
@given(cut=st.integers(0, 30), seed=st.integers(0, 3))
def test_an_answer_that_goes_on_elsewhere_goes_on_with_the_same_ids(frontend, shipped, text, cut, seed):
    prompt = frontend.render(conversation(user(text), tools=(WEATHER,)), scope="")
    whole, finish = output(shipped, prompt, seed=seed)
    cut = min(cut, len(whole) - 1)
    ids = prompt.ids + pack_ids(whole[:cut])
    out = SimulatedOutput(shipped, request(ids, continuation=cut, seed=seed), ROOM)
    rest = []
    while out.finish is None:
        rest.append(out.next())
    assert (rest, out.finish) == (whole[cut:], finish)


def test_limits_hold_and_more_is_said_where_the_end_is_not_wanted(frontend, shipped):
    prompt = frontend.render(conversation(user("Anything")), scope="")
    whole, _ = output(shipped, prompt)
    assert whole[-1] == frontend.stop_ids[0]
    assert output(shipped, prompt, max_tokens=5) == (whole[:5], Finish.LENGTH)
    on, finish = output(shipped, prompt, max_tokens=2000, ignore_eos=True)
    assert (len(on), finish) == (2000, Finish.LENGTH)
    told = answer(frontend, shipped, conversation(user("Anything")), max_tokens=2000, ignore_eos=True)
    assert len(told.content.split()) > 1500
    assert len(output(shipped, prompt, min_tokens=1000)[0]) >= 1000
    long = answer(frontend, shipped, conversation(user("Anything")), min_tokens=1000)
    assert len(long.content.split()) > 700
    assert long.finished.degraded == ()


def test_of_a_long_message_the_end_is_read_and_of_a_long_prompt_no_more(frontend):
    vocabulary = frontend.vocabulary
    prompt = frontend.render(
        conversation(user("word " * 3 * TAIL_TOKENS + "at last"), tools=(WEATHER,)), scope=""
    )
    asked = read(unpack_ids(prompt.ids), vocabulary)
    assert asked.text.endswith("word at last")
    assert len(asked.text) < 10 * TAIL_TOKENS
    assert (asked.role, asked.start, asked.tools) == ("user", Channel.THINK, True)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=60))
def test_ids_that_are_no_prompt_are_answered_all_the_same(shipped, tokenizer, ids):
    specials = tokenizer.vocabulary.specials
    known = [specials.ranks + i % 8 if i % 3 else i for i in ids] or [1]
    plan = shipped.plan(request(pack_ids(known)), ROOM)
    assert plan.end > 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: [{when: {contains: x}}]", "s.yaml:1:9: rules[0].answer: is missing; expected a mapping"),
        (
            "rules:\n  - when: {contians: x}\n    answer: {}",
            "s.yaml:2:12: rules[0].when.contians: unknown field; did you mean 'contains'?",
        ),
        (
            "rules:\n  - when: {regex: '('}\n    answer: {}",
            "s.yaml:2:19: rules[0].when.regex: expected a regular expression",
        ),
        ("rules:\n  - when: {}\n    answer: {}", "s.yaml:2:11: rules[0].when: no condition"),
        ("default: {oddity: odd}", "s.yaml:1:19: default.oddity: expected an oddity: argument_"),
        (
            "default: {oddity: call_cut}",
            "s.yaml:1:19: default.oddity: call_cut needs an answer with argument",
        ),
        ("default: {finish: tool_calls}", "s.yaml:1:19: default.finish: expected stop or length, found"),
        ("default: {content: 5}", "found the number 5; put it in quotes to make it text"),
        ("oddities: {sep_bare: 0.6, tag_cut: 0.6}", "s.yaml:1:11: oddities: the shares come to more than 1"),
        ("oddities: {sep_bare: 2}", "s.yaml:1:22: oddities.sep_bare: expected a share, 0 to 1, found"),
        ("oddities: {zzz: 0.1}", "s.yaml:1:12: oddities.zzz: expected an oddity: argument_"),
        ("oddities: {sep_bare: 0.1,\n  zzz: 2}", "s.yaml:2:8: oddities.zzz: expected a share, 0 to 1, found"),
        ("default: {tool_calls: [{name: 1x}]}", "default.tool_calls[0].name: expected a tool's name"),
        ("- a", "s.yaml:1:1: expected a mapping with the fields rules, default, oddities, found a list of 1"),
        ("default: {", "s.yaml:1:11: not YAML"),
    ],
)
def test_a_faulty_script_is_refused_with_its_line_and_field(text, said):
    with pytest.raises(EngineStartError) as raised:
        script.parse(text, "s.yaml")
    assert said in raised.value.message


def test_all_faults_are_told_at_once_and_a_missing_file_by_name(tmp_path):
    with pytest.raises(EngineStartError) as raised:
        script.parse("default: {finish: x, oddity: y}\nrules: [{}]")
    assert len(raised.value.message.splitlines()) == 4
    with pytest.raises(EngineStartError, match=r"none\.yaml cannot be read: No such file"):
        script.load(tmp_path / "none.yaml")


def test_an_empty_script_says_words(frontend, tokenizer):
    assert answer(frontend, ScriptedVoice(tokenizer, script.parse("")), conversation(user("x"))).content


def test_the_page_about_scripts_shows_one_that_is_read_and_names_every_field():
    page = (Path(__file__).resolve().parents[2] / "docs" / "kimi-k3-script.md").read_text()
    (example,) = [part for part in page.split("```")[1::2] if part.startswith("yaml\n# script.yaml")]
    made = script.parse(example.removeprefix("yaml\n"))
    assert len(made.rules) == 3
    assert set(made.oddities) == {"think_not_closed", "call_without_tools"}
    for record in (script.When, script.Answer):
        assert all(name in page for name in record.model_fields)
