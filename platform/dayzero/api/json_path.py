"""Where a value stands in a body, as clients write it: `messages[0].content`.

A place is linked to the one around it and spelled only when it is needed: a body with one long key and many values
below it would else cost their product.
"""

from collections.abc import Iterator
from typing import Any

Place = tuple["Place", str | int] | None
"""The place around it and the key or index there; None for the body itself."""

MAX_CHARACTERS = 256
"""Of a place that is spelled: keys are the client's, and an error repeats them."""


def walk(body: Any) -> Iterator[tuple[Place, Any, Any]]:
    """Every value in it, in order, with its place and what holds it (None for the body), which may be mended.

    Holds no more than one path at a time.
    """
    yield None, None, body
    stack = [_children(None, body)]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        yield found
        place, _, value = found
        if isinstance(value, dict | list):
            stack.append(_children(place, value))


def _children(place: Place, value: Any) -> Iterator[tuple[Place, Any, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield (place, key), value, child
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield (place, index), value, child


def spelled(place: Place) -> str:
    """Empty for the body itself."""
    steps = []
    while place is not None:
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    path = "".join(reversed(steps)).removeprefix(".")
    return path if len(path) <= MAX_CHARACTERS else f"{path[:MAX_CHARACTERS]}…"
