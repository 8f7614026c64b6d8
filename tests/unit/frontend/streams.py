"""Streams cut into parts."""

from itertools import pairwise


def split(whole, cuts):
    """A sequence cut at these places, in order; a place past the end cuts nothing off."""
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]
