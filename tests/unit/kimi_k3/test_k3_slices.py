"""Where a text is cut before BPE: as a walk over its characters cuts it."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.kimi_k3.slices import slices
from tests.unit.kimi_k3.reference import reference_slices

RUNS = st.lists(
    st.tuples(st.sampled_from([" ", "\n", "\u3000", "\x1c", "x", "中", "😀"]), st.integers(1, 12)),
    max_size=20,
)


@given(runs=RUNS, slice_characters=st.integers(5, 60), run_characters=st.integers(1, 7))
def test_texts_are_cut_where_a_walk_over_the_characters_cuts_them(runs, slice_characters, run_characters):
    text = "".join(character * length for character, length in runs)
    parts = slices(text, slice_characters=slice_characters, run_characters=run_characters)
    assert parts == reference_slices(text, slice_characters, run_characters)
    assert "".join(parts) == text


@pytest.mark.parametrize("unit", ["x", " ", "x y"])
def test_the_limits_are_those_of_the_reference(unit):
    for length in (25_000, 25_001, 50_001, 400_000, 400_001):
        text = (unit * length)[:length]
        assert slices("ab " + text + " cd") == reference_slices("ab " + text + " cd")
        assert slices(text) == reference_slices(text)


def test_white_space_is_the_same_for_every_way_of_asking():
    """The cut is found with `rstrip` and `rsplit`; the reference asks `isspace`."""
    for character in map(chr, range(sys.maxunicode + 1)):
        white = character.isspace()
        assert (f"x{character}".rstrip() == "x") is white
        assert (f"x{character}x".rsplit(None, 1) == ["x", "x"]) is white


def test_an_empty_text_has_no_slices():
    assert slices("") == []
