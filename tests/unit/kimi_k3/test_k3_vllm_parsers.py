"""Our decoder beside vLLM's K3 parsers: equal where those are right, and where they are not it is written down."""

import importlib.util

import pytest

from benchmarks.frontend.vllm_parsers import Peer, values
from tests.unit.kimi_k3.answers import ids_of
from tests.unit.kimi_k3.cases import CASES
from tests.unit.kimi_k3.vllm_differences import AT_ONCE, BUFFERED, DIFFERENCES, STREAMED

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the engine lock is not installed"),
    pytest.mark.filterwarnings("ignore"),  # vLLM's and torch's own, at import
]

COMPARED = [case for case in CASES if not case.stop]
"""Stop strings are the business of vLLM's engine, not of its parsers."""


@pytest.fixture(scope="module")
def peer(small_tokenizer):
    return Peer(small_tokenizer)


@pytest.mark.parametrize("case", COMPARED, ids=lambda case: case.name)
def test_vllm_comes_to_the_same_except_where_it_is_written_down(small_tokenizer, peer, case):
    ids = ids_of(small_tokenizer, case.pieces)
    choice = case.expected.choice.mode.value
    request = peer.request(
        [tool.name for tool in case.expected.tools or ()],
        choice if choice in ("none", "required") else "auto",
    )
    ways = {
        BUFFERED: lambda: peer.buffered(ids, case.start, request),
        STREAMED: lambda: peer.streamed([[token] for token in ids], case.start, request),
        AT_ONCE: lambda: peer.streamed([ids], case.start, request),
    }
    ours = (case.reasoning, case.content, values(call[:2] for call in case.calls))
    assert tuple(way for way, run in ways.items() if theirs(run) != ours) == (
        DIFFERENCES[case.name].ways if case.name in DIFFERENCES else ()
    )


def theirs(run):
    try:
        answer = run()
    except (ValueError, RecursionError) as e:
        return e
    return answer.reasoning, answer.content, values(answer.calls)


def test_only_cases_that_exist_are_written_down():
    assert set(DIFFERENCES) <= {case.name for case in COMPARED}
