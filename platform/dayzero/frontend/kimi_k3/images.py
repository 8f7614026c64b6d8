"""How many placeholder ids a picture takes (KIMI_K3 section 3).

The model sees patches of 14 x 14 pixels, merged two by two: one id stands for 28 x 28 pixels of the picture after it
was scaled down to what the processor takes.
"""

import math

PATCH_PX = 14
MERGED_PX = 28
LONGEST_SIDE_PX = 3584
PATCH_LIMIT = 65_536
"""The processor's `in_patch_limit`, where the checkpoint does not say."""


def placeholder_tokens(width_px: int, height_px: int, patch_limit: int = PATCH_LIMIT) -> int:
    """Of a picture of this size as it was uploaded."""
    patches = max(1, width_px // PATCH_PX) * max(1, height_px // PATCH_PX)
    scale = min(
        1.0, math.sqrt(patch_limit / patches), LONGEST_SIDE_PX / width_px, LONGEST_SIDE_PX / height_px
    )
    return _cells(width_px, scale) * _cells(height_px, scale)


def _cells(side_px: int, scale: float) -> int:
    """A side is cut to whole pixels, then padded to whole cells; however thin, it has one."""
    return max(1, math.ceil(int(side_px * scale) / MERGED_PX))
