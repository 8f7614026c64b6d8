"""Where a text is cut for several cores: only where no id changes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.kimi_k3.shares import SHARE_CHARACTERS, shares
from tests.unit.kimi_k3.strings import FRAGMENTS, adversarial

# What stands around a safe place, far more often than by chance.
NEAR = [
    *"abzAZ",
    " ",
    " a",
    "b c",
    "\n",
    "\na",
    "\r\nB",
    "中",
    "\uff0c",
    "。",
    "中\uff0c",
    "か",
    "々",
    "\u0301",
    "'s a",
    "'s",
    "1",
    "_",
]


def ids(reference, parts):
    return [i for part in parts for i in reference.tiktoken.encode_ordinary(part)]


@given(pieces=st.lists(st.sampled_from(NEAR + FRAGMENTS), max_size=30), characters=st.integers(1, 9))
def test_shares_have_the_ids_of_the_whole(reference, pieces, characters):
    text = "".join(pieces)
    parts = shares(text, characters=characters)
    assert "".join(parts) == text
    assert ids(reference, parts) == ids(reference, [text])


def test_shares_of_ten_thousand_adversarial_strings_have_the_ids_of_the_whole(reference):
    seeded = random.Random(7)
    cut = 0
    for text in adversarial(5_000, seed=11) + ["".join(seeded.choices(NEAR, k=24)) for _ in range(5_000)]:
        parts = shares(text, characters=1)
        cut += len(parts) > 1
        assert ids(reference, parts) == ids(reference, [text])
    assert cut > 3_000


@pytest.mark.parametrize(
    "line", ["def f(x): return x\n", "the quick brown fox ", "他说\uff0c今天的天气很好。"]
)
def test_ordinary_texts_are_cut_into_shares_of_about_one_size(line):
    text = line * (400_000 // len(line))
    lengths = [len(share) for share in shares(text)]
    assert len(lengths) >= 6
    assert min(lengths) >= SHARE_CHARACTERS
    assert max(lengths[:-1]) < SHARE_CHARACTERS + 50


@pytest.mark.parametrize("text", ["a" * 200_000, " " * 200_000, "中" * 200_000, "", "short text of words"])
def test_a_text_without_a_safe_place_or_too_short_stays_whole(text):
    assert shares(text) == [text]
