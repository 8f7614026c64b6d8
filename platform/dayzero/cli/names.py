"""Names on a command line."""

from collections.abc import Iterable


def split(words: Iterable[str] | None) -> list[str] | None:
    """`--region a --region b` and `--region a,b` → both, once each; None where none was given."""
    names = [name.strip() for word in words or () for name in word.split(",")]
    return list(dict.fromkeys(name for name in names if name)) or None
