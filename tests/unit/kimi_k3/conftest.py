"""Kimi K3's tokenizers: with the vocabulary shipped here, always; with the real one, where it is."""

import pytest

from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED


@pytest.fixture(scope="session")
def small_tokenizer() -> K3Tokenizer:
    return K3Tokenizer(load_vocabulary(SHIPPED, origin="shipped"))


@pytest.fixture(scope="session")
def k3_tokenizer(k3_vocabulary) -> K3Tokenizer:
    return K3Tokenizer(load_vocabulary(k3_vocabulary, origin="environment"))


@pytest.fixture(scope="session", params=["shipped", "real"])
def tokenizer(request) -> K3Tokenizer:
    names = {"shipped": "small_tokenizer", "real": "k3_tokenizer"}
    return request.getfixturevalue(names[request.param])


@pytest.fixture(scope="session")
def reference(tokenizer):
    from tests.unit.kimi_k3.reference import Reference

    return Reference(tokenizer.vocabulary.ranks)
