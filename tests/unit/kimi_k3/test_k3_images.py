"""How many placeholder ids a picture takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.kimi_k3.images import placeholder_tokens


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (640, 480, 23 * 18),
        (1, 1, 1),
        (28, 28, 1),
        (29, 28, 2),
        (56, 56, 4),
        (3584, 3584, 128 * 128),
        (3584, 28, 128),
        (7168, 56, 128),  # the long side halves it
        (7168, 7168, 128 * 128),
        (100_000, 1, 128),  # a side of less than a pixel still has a cell
        (1, 100_000, 128),
    ],
)
def test_a_cell_is_28_pixels_of_the_picture_as_it_was_scaled(width, height, tokens):
    assert placeholder_tokens(width, height) == tokens


def test_the_processors_limit_of_patches_scales_a_picture_down():
    """3584 x 3584 has 65,536 patches; a quarter of the patches is half of each side."""
    assert placeholder_tokens(3584, 3584, patch_limit=16_384) == 64 * 64


@given(st.integers(1, 50_000), st.integers(1, 50_000), st.sampled_from([1, 16_384, 65_536]))
def test_no_picture_takes_more_than_its_limit_and_its_padding(width, height, patch_limit):
    tokens = placeholder_tokens(width, height, patch_limit)
    assert 1 <= tokens <= 128 * 128
    # Cutting to whole patches may lose almost half of a side, padding adds at most a cell to each.
    assert tokens <= 4 * patch_limit + 128 + 128 + 1
    assert tokens == placeholder_tokens(height, width, patch_limit)
