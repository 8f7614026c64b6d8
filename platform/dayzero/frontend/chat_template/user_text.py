"""A user's string on its way through a template: the template reads it as it is, and prints it broken.

- Its characters as Python sees them (printed, joined, concatenated) are the *broken* ones, with marks in them.
- Its methods, tests, comparisons, length, slices and hash are those of the *clean* string, and each string that
  they return is a user's string again, broken anew. So a template's decisions are those it would take without us.
- Whatever is not listed here works on the broken characters: a method forgotten is a fidelity fault, not a hole.
"""

from collections.abc import Callable, Iterator
from typing import Any, Self

# `join` builds from broken parts. A user's string as a format could reach into objects: the sandbox takes `format`
# over, and then fails. `encode` has no use in a template.
_LEFT_ALONE = frozenset({"join", "format", "format_map", "encode", "maketrans"})


class UserText(str):
    """`clean` is what the user sent; `renew` marks a value derived from it."""

    __slots__ = ("clean", "renew")
    clean: str
    renew: Callable[[Any], Any]

    def __new__(cls, clean: str, broken: str, renew: Callable[[Any], Any]) -> Self:
        self = super().__new__(cls, broken)
        self.clean = clean
        self.renew = renew
        return self

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return self.renew(repr(self.clean))  # type: ignore[no-any-return]

    def __format__(self, spec: str) -> str:
        return self.renew(format(self.clean, spec))  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return hash(self.clean)

    def __iter__(self) -> Iterator[str]:
        return iter([self.renew(character) for character in self.clean])

    def __add__(self, other: str) -> str:
        if isinstance(other, UserText):
            return self.renew(self.clean + other.clean)  # type: ignore[no-any-return]
        return super().__add__(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self.clean,)


def clean(value: Any) -> Any:
    """A value without marks: what JSON and comparisons should see."""
    if isinstance(value, UserText):
        return value.clean
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, tuple):
        return tuple(clean(item) for item in value)
    return value


def _on_clean(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(self: UserText, *args: Any, **kwargs: Any) -> Any:
        result = method(
            self.clean, *[clean(a) for a in args], **{key: clean(arg) for key, arg in kwargs.items()}
        )
        return result if result is NotImplemented else self.renew(result)

    call.__name__ = name
    return call


_PUBLIC = [name for name in dir(str) if not name.startswith("_") and name not in _LEFT_ALONE]
_OPERATORS = ["contains", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "len", "mul", "rmul", "mod"]
for _name in [*_PUBLIC, *(f"__{operator}__" for operator in _OPERATORS)]:
    setattr(UserText, _name, _on_clean(_name))
