"""Runs of tool results: their order, names and numbers."""

import pytest

from dayzero.frontend.conversation import Message, Role
from dayzero.frontend.errors import FrontendError
from dayzero.frontend.kimi_k3.frontend import KimiK3Frontend
from tests.unit.kimi_k3.prompts import USER, called, of, result, said, spelled


@pytest.fixture(scope="module")
def frontend(small_tokenizer):
    return KimiK3Frontend(small_tokenizer)


def shown(frontend, *messages):
    """(tool, index, text) of each result in the prompt."""
    marker = '<|open|>message role="tool" tool="'
    found = []
    for piece in spelled(frontend, of(*messages)).split(marker)[1:]:
        tool, rest = piece.split('" index="', 1)
        index, text = rest.split('"<|sep|>', 1)
        found.append((tool, int(index), text.split("<|close|>")[0]))
    return found


CALLS = called(("a", "f"), ("b", "g"), ("c", "h"))


def test_results_take_the_order_and_the_names_of_their_calls(frontend):
    run = [result("3", "c"), result("1", "a", "liar"), result("2", "b")]
    assert shown(frontend, CALLS, *run) == [("f", 1, "1"), ("g", 2, "2"), ("h", 3, "3")]


def test_of_calls_with_one_id_the_first_counts(frontend):
    twice = called(("x", "first"), ("y", "other"), ("x", "second"))
    assert shown(frontend, twice, result("1", "y"), result("2", "x"), result("3", "x")) == [
        ("first", 1, "2"),
        ("first", 2, "3"),
        ("other", 3, "1"),
    ]


@pytest.mark.parametrize("stranger", [None, "", "nope"])
def test_one_id_without_a_call_takes_the_ids_from_the_whole_run(frontend, stranger):
    run = [result("1", "c"), result("2", stranger, "own"), result("3", "a")]
    assert shown(frontend, CALLS, *run) == [("f", 1, "1"), ("own", 2, "2"), ("h", 3, "3")]


def test_another_message_ends_a_run_but_not_the_count(frontend):
    conversation = [CALLS, result("2", "b"), result("1", "a"), USER, said("system", "s"), result("3", "c")]
    assert shown(frontend, *conversation) == [("f", 1, "1"), ("g", 2, "2"), ("h", 3, "3")]


def test_a_nameless_result_is_named_by_the_call_at_its_number(frontend):
    """The number that the prompt shows, also across runs."""
    conversation = [CALLS, result("1", "?"), USER, result("2", "?")]
    assert shown(frontend, *conversation) == [("f", 1, "1"), ("g", 2, "2")]


def test_an_assistant_message_begins_a_new_count(frontend):
    conversation = [CALLS, result("1", "a"), called(("a", "k")), result("2", "a"), said("assistant", "x")]
    assert shown(frontend, *conversation, result("3", None, "own")) == [
        ("f", 1, "1"),
        ("k", 1, "2"),
        ("own", 1, "3"),
    ]


def test_a_call_may_have_no_result(frontend):
    assert shown(frontend, CALLS, result("2", "b"), said("user", "go on")) == [("g", 1, "2")]


def test_the_name_of_a_result_is_its_tool_and_stands_nowhere_else(frontend):
    assert "name=" not in spelled(frontend, of(CALLS, result("1", "?", "own")))


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ((USER, result("1", "a")), 1),
        ((CALLS, said("assistant", "no calls"), result("1", "a")), 2),
        ((called(("a", "f")), result("1", "?"), result("2", "?")), 2),
    ],
)
def test_a_result_with_neither_call_nor_name_is_refused_by_its_place(frontend, messages, at):
    with pytest.raises(FrontendError, match=rf"messages\[{at}\]") as refused:
        frontend.render(of(*messages), scope="")
    assert refused.value.param == f"messages[{at}].tool_call_id"


@pytest.mark.parametrize("content", [(), ("",)])
def test_history_with_calls_needs_no_content(frontend, content):
    parts = said("assistant", "").content if content else ()
    message = Message(Role.ASSISTANT, parts, tool_calls=CALLS.tool_calls)
    assert "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>" in spelled(
        frontend, of(message)
    )
