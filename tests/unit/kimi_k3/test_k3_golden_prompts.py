"""Prompts whose ids are known."""

import numpy as np
import pytest

from dayzero.frontend.kimi_k3.frontend import KimiK3Frontend
from tests.unit.kimi_k3.golden import PROMPTS, conversation_of, goldens

GOLDENS = goldens() if PROMPTS.exists() else []


@pytest.fixture(scope="module")
def k3(k3_tokenizer):
    return KimiK3Frontend(k3_tokenizer)


@pytest.mark.skipif(not PROMPTS.exists(), reason="no golden prompts beside the repository")
def test_there_are_forty_golden_prompts():
    assert len({golden["id"] for golden in GOLDENS}) == len(GOLDENS) == 40


@pytest.mark.parametrize("golden", GOLDENS, ids=[golden["id"] for golden in GOLDENS])
def test_a_golden_request_becomes_its_prompt_id_for_id(k3, golden):
    prompt = k3.render(conversation_of(golden["request"]), scope="")
    assert np.frombuffer(prompt.ids, "<u4").tolist() == golden["prompt_token_ids"]
    assert prompt.billed_tokens == golden["n"] - 3
