"""How answers for people are laid out: tables, and words that count."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table


def table(*headings: str, right: int | None = None) -> Table:
    """Without lines of spaces around it. `right`: the first column of those that are set to the right."""
    made = Table(*headings, box=SIMPLE, show_edge=False)
    for column in made.columns[len(headings) if right is None else right :]:
        column.justify = "right"
    return made


def say(console: Console, line: str) -> None:
    """A line as it is: whoever copies from it gets all of it, and no markup."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def counted(number: object, noun: str, nouns: str | None = None) -> str:
    """`1 process`, `2 processes`; what is not known is `?`."""
    if not isinstance(number, int):
        return f"? {nouns or noun + 's'}"
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"
