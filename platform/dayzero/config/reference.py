"""The reference page of the fleet file, written from the schema: `python -m dayzero.config.reference > PAGE`."""

import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

from pydantic.fields import FieldInfo

from dayzero.config.fleet import Fleet
from dayzero.config.record import Record
from dayzero.config.schema import records, words
from dayzero.config.serving import Frontend, KimiK3Options

_HEAD = """\
# The fleet file

One YAML file says what a fleet is. `deployments/local.yaml` is that of one machine. The file has three sections:
`infrastructure`, `serving` and `policy`. Each has its own hash, so that a change of one does not touch the others.

- A field that is not listed here is refused, with its line and what was expected. All faults are shown at once.
- Text, numbers and `true`/`false` are never taken for one another. `yes`, `on`, `010` and dates are text.
- Sizes in bytes may be written `256 MiB`. All durations are seconds.
- Anchors and aliases work; merge keys (`<<`) and tags do not.

This page is made from the schema (`python -m dayzero.config.reference`); a test keeps it true.
"""


def page() -> str:
    """The whole page in Markdown."""
    return "\n".join([_HEAD, *_tables()])


def _tables() -> Iterator[str]:
    for path, record in records(Fleet):
        if path:
            yield _table(f"`{path}`", record)
        if record is Frontend:
            yield _table(f"`{path}.options` of kind `kimi_k3`", KimiK3Options)


def _table(title: str, record: type[Record]) -> str:
    lines = [
        f"## {title}",
        "",
        record.__doc__ or "",
        "",
        "| field | expected | default | what |",
        "|---|---|---|---|",
    ]
    lines.extend(_rows(record))
    return "\n".join(line.strip() for line in lines) + "\n"


def _rows(record: type[Record]) -> Iterator[str]:
    hints = get_type_hints(record, include_extras=True)
    for name, field in record.model_fields.items():
        what = " ".join((field.description or "See below.").split())
        expected = words(hints[name])
        if expected.startswith("a mapping with the fields"):
            expected = "a mapping"
        yield f"| `{name}` | {expected} | {_default(field)} | {what} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    match value:
        case None | () | {} if not value:
            return "absent" if value is None else "empty"
        case Record() | tuple():
            return "its defaults"
        case bool():
            return f"`{str(value).lower()}`"
        case int() if value >= 1 << 20 and value % (1 << 20) == 0:
            return f"`{value >> 20} MiB`"
        case _:
            return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(page())
