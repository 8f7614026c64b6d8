"""Text to ids: tiktoken's over the reference's slices, for every text."""

import random
import sys
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.detokenizer import Detokenizer
from dayzero.frontend.errors import FrontendError, FrontendLoadError
from dayzero.frontend.kimi_k3 import tokenizer as tokenizer_module
from dayzero.frontend.kimi_k3.long_s import PIECES_AT_ONCE, LongS
from dayzero.frontend.kimi_k3.slices import slices
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED
from tests.unit.kimi_k3.strings import FRAGMENTS, adversarial, pathological

PATHOLOGICAL_CHARACTERS = 60_000
TEXTS = st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), max_size=6)


def as_list(ids: bytes) -> list[int]:
    return memoryview(ids).cast("I").tolist()


def different(tokenizer, reference, texts):
    return [
        text
        for text, ids in zip(texts, tokenizer.encode(texts), strict=True)
        if as_list(ids) != reference.encode(text)
    ]


def test_ten_thousand_adversarial_strings_have_the_references_ids(tokenizer, reference):
    assert different(tokenizer, reference, adversarial(10_000, seed=4)) == []


def test_every_assigned_code_point_has_the_references_ids(tokenizer, reference):
    """Each between letters, doubled, after a space, a digit and an apostrophe, and before a line's end."""
    assigned = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cn", "Cs")]
    assert len(assigned) > 250_000
    contexts = [f"a{c}{c}B {c}1{c}'{c}\n" for c in assigned]
    texts = ["".join(contexts[start : start + 200]) for start in range(0, len(contexts), 200)]
    assert different(tokenizer, reference, texts) == []


def test_every_token_that_is_text_has_the_references_ids(tokenizer, reference):
    tokens = [text for text in tokenizer.vocabulary.table.texts if text]
    assert different(tokenizer, reference, tokens) == []


@pytest.mark.parametrize("name", pathological(1))
def test_texts_that_grow_without_bound_have_the_references_ids_in_time(tokenizer, reference, name):
    text = pathological(PATHOLOGICAL_CHARACTERS)[name]
    assert different(tokenizer, reference, [text]) == []
    parts = slices(text)
    ours_s = median_s(lambda: tokenizer._encode([text]))
    theirs_s = median_s(lambda: [reference.tiktoken.encode_ordinary(part) for part in parts])
    assert ours_s < 3 * theirs_s + 0.005


def median_s(work) -> float:
    """Of processor time, all threads together: what else the machine does is not in it."""
    seconds = []
    for _ in range(5):
        began_s = time.process_time()
        work()
        seconds.append(time.process_time() - began_s)
    return median(seconds)


@given(texts=TEXTS)
def test_a_text_has_the_same_ids_alone_and_among_others(small_tokenizer, texts):
    alone = [K3Tokenizer.encode(small_tokenizer, [text], scope="alone")[0] for text in texts]
    assert small_tokenizer.encode(texts, scope="together") == alone
    assert small_tokenizer.encode([*texts, *texts], scope="together") == [*alone, *alone]


def test_many_texts_at_once_have_the_ids_of_each(tokenizer, reference):
    texts = adversarial(600, seed=5) * 3 + ["x y " * 20_000, ""]
    assert sum(map(len, texts)) > tokenizer_module.ALONE_CHARACTERS
    without_cache = [reference.encode(text) for text in texts]
    assert [as_list(ids) for ids in tokenizer.encode(texts)] == without_cache


def test_no_text_becomes_a_control_token(tokenizer):
    specials = tokenizer.vocabulary.specials
    text = "".join(specials.names().values())
    (ids,) = tokenizer.encode([text])
    assert max(as_list(ids)) < specials.ranks
    assert tokenizer.vocabulary.table.bytes_of(as_list(ids)).decode() == text


def test_ids_are_detokenized_to_the_text_they_came_from(tokenizer):
    for text in adversarial(500, seed=6):
        (ids,) = tokenizer.encode([text])
        detokenizer = Detokenizer(tokenizer.vocabulary.table)
        assert detokenizer.push(as_list(ids)) + detokenizer.finish() == text


def test_a_lone_surrogate_is_the_requests_fault(tokenizer):
    for text in ("\ud800", "x" * 100_000 + "\udfff", " I'\u017f\ud800"):
        with pytest.raises(FrontendError, match="lone surrogate") as raised:
            tokenizer.encode(["fine", text])
        assert raised.value.status == 400


def test_a_conversation_that_grows_costs_only_its_new_part(small_tokenizer):
    tokenizer = K3Tokenizer(small_tokenizer.vocabulary)
    texts = [f"{number} " + "word " * number for number in range(60)]
    for turn in range(10, 60, 10):
        before = tokenizer.cache_stats()
        tokenizer.encode(texts[:turn], scope="tenant")
        after = tokenizer.cache_stats()
        assert (after.hits - before.hits, after.misses - before.misses) == (turn - 10, 10)


def test_what_one_scope_sent_is_not_known_to_another(small_tokenizer):
    tokenizer = K3Tokenizer(small_tokenizer.vocabulary)
    (ids,) = tokenizer.encode(["a secret"], scope="one")
    assert tokenizer.encode(["a secret"], scope="two") == [ids]
    assert tokenizer.cache_stats().hits == 0


def test_threads_get_the_ids_that_each_would_get_alone(tokenizer):
    texts = adversarial(400, seed=7)
    alone = tokenizer.encode(texts, scope="alone")

    def encoded(number):
        return tokenizer.encode(texts[number:] + texts[:number], scope=f"thread {number % 3}")

    with ThreadPoolExecutor(8) as threads:
        for number, ids in enumerate(threads.map(encoded, range(24))):
            assert ids == alone[number:] + alone[:number]


LONG_S = "\u017f"
PIECES = [
    " I",
    f"'{LONG_S}",
    f" I'{LONG_S}",
    "s",
    "'s",
    "'",
    "ve",
    "'ve",
    LONG_S,
    " ",
    "\n",
    "\t",
    "I",
    "a",
    "中",
    ".",
    "!!",
]
PIECES += ["\u0301", "1"]


def test_a_long_s_ends_a_contraction_as_in_the_reference(tokenizer, reference):
    """The one place where fastokens alone is not exact."""
    seeded = random.Random(8)
    texts = ["".join(seeded.choices(PIECES, k=seeded.randrange(14))) for _ in range(3_000)]
    assert sum(f"'{LONG_S}" in text for text in texts) > 1_000
    repeated = [unit * 10_000 for unit in (f" I'{LONG_S}", f"a'{LONG_S}", f"'{LONG_S}", f"中'{LONG_S}")]
    assert different(tokenizer, reference, [*texts, *repeated]) == []


def test_many_contractions_reach_fastokens_a_few_at_a_time(tokenizer):
    """It holds the interpreter lock while it takes the strings of a list."""
    (whole,) = tokenizer.encode([f"a'{LONG_S} I'{LONG_S}" * 20_000])
    sizes = []

    def batch(pieces):
        sizes.append(len(pieces))
        return tokenizer._batch(pieces)

    assert tokenizer._long_s.encode(slices(f"a'{LONG_S} I'{LONG_S}" * 20_000), batch) == whole
    assert len(sizes) > 1
    assert max(sizes) <= PIECES_AT_ONCE


def test_words_of_the_vocabulary_that_reach_over_a_contraction_are_known(k3_tokenizer, small_tokenizer):
    assert list(k3_tokenizer._long_s.words) == [f" I'{LONG_S}"]
    assert small_tokenizer._long_s.words == {}


@pytest.mark.parametrize("head", [b"ab", "é".encode(), b"\xa9"])
def test_a_vocabulary_that_could_not_be_encoded_exactly_is_refused(small_tokenizer, head):
    ranks = dict.fromkeys([*small_tokenizer.vocabulary.ranks, head + b"'"], 0)
    with pytest.raises(FrontendLoadError, match="cannot be encoded exactly"):
        LongS(ranks)


def test_a_cache_that_tenants_would_share_is_refused():
    vocabulary = load_vocabulary(SHIPPED, origin="shipped")
    with pytest.raises(FrontendLoadError, match="unset FASTOKENS_INPUT_CACHE"):
        K3Tokenizer(vocabulary, environ={"FASTOKENS_INPUT_CACHE": "8"})
    K3Tokenizer(vocabulary, environ={"FASTOKENS_INPUT_CACHE": "0"}).warm()
