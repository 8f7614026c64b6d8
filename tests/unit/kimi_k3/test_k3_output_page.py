"""docs/kimi-k3-output.md says what the code does."""

from pathlib import Path

from dayzero.frontend.kimi_k3 import oddities
from dayzero.frontend.kimi_k3.oddities import Oddity
from tests.unit.kimi_k3 import vllm_differences
from tests.unit.kimi_k3.cases import CASES

PAGE = Path(__file__).parents[3] / "docs/kimi-k3-output.md"


def test_the_page_has_every_oddity_with_its_rule():
    assert oddities.table() in PAGE.read_text()


def test_the_page_has_every_difference_to_vllm():
    assert vllm_differences.table() in PAGE.read_text()


def test_every_oddity_has_a_case():
    named = {name for case in CASES for name in case.degraded}
    assert {str(oddity) for oddity in Oddity} - named == set()


def test_an_oddity_is_its_name():
    assert Oddity("think_not_closed") is Oddity.THINK_NOT_CLOSED
    assert f"{Oddity.THINK_NOT_CLOSED}" == "think_not_closed"
    assert all(oddity.rule.endswith(".") for oddity in Oddity)
