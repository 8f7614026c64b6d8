"""Every case in every split: streamed equals buffered, and equals what is written down."""

import json

import pytest

from tests.unit.frontend.streams import split
from tests.unit.kimi_k3.answers import hear, ids_of
from tests.unit.kimi_k3.cases import CASES, Case

FEW = 120
"""Ids up to which every pair of cuts is tried."""


def heard(tokenizer, case: Case, parts):
    return hear(
        tokenizer.vocabulary,
        parts,
        start=case.start,
        expected=case.expected,
        stop=case.stop,
        finish=case.finish,
    )


def as_written(case: Case, answer):
    calls = tuple(
        (c.name, c.arguments) if c.complete else (c.name, c.arguments, False) for c in answer.tool_calls
    )
    finished = answer.finished
    return (answer.reasoning, answer.content, calls, finished.reason, finished.degraded) == (
        case.reasoning,
        case.content,
        case.calls,
        case.reason,
        case.degraded,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_answer_comes_to_what_is_written(small_tokenizer, case):
    for bytewise in (False, True):
        ids = ids_of(small_tokenizer, case.pieces, bytewise=bytewise)
        answer = heard(small_tokenizer, case, [ids]).answer
        assert as_written(case, answer), answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_split_changes_anything(small_tokenizer, case):
    for bytewise in (False, True):
        ids = ids_of(small_tokenizer, case.pieces, bytewise=bytewise)
        whole = heard(small_tokenizer, case, [ids]).seen
        for size in (1, 2, 3, 7, 8, 64):
            parts = [ids[at : at + size] for at in range(0, len(ids), size)]
            assert heard(small_tokenizer, case, parts).seen == whole
        if len(ids) <= FEW:
            for cut in range(len(ids) + 1):
                assert heard(small_tokenizer, case, split(ids, [cut, cut + 4])).seen == whole


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_arguments_of_a_whole_call_are_one_json_object(small_tokenizer, case):
    for call in heard(small_tokenizer, case, [ids_of(small_tokenizer, case.pieces)]).answer.tool_calls:
        if call.complete:
            value = json.loads(call.arguments)
            assert isinstance(value, dict)
            assert call.arguments in (json.dumps(value, ensure_ascii=False), json.dumps(value))


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)
