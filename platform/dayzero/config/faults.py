"""What pydantic found, as faults in our words: where, what was found, what was expected, and a guess."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from dayzero.config.errors import Fault
from dayzero.config.record import Record
from dayzero.config.schema import annotation_at, is_record, plain, words
from dayzero.config.yaml_source import Path, Source

_SHOWN_CHARACTERS = 40
_UNKNOWN = "unknown field"
_KEY = "[key]"
"""What pydantic puts behind a mapping's key where the key itself is wrong."""
_CREDENTIALS = re.compile(r"(?<=://)\S*@")
"""Of a URL: a fault is printed and logged."""


def field_faults(error: ValidationError, root: type[Record], source: Source) -> Iterator[Fault]:
    for path, message in field_findings(error, root, source.raw):
        if _is_key(path, root):
            yield source.fault(path[:-1], message, key=True)
        else:
            yield source.fault(path, message, key=message.startswith(_UNKNOWN))


def field_findings(
    error: ValidationError, root: type[Record], raw: Mapping[Path, str]
) -> Iterator[tuple[Path, str]]:
    """Where below `root`, and what is wrong there. `raw`: how values are written in the file, where that is known."""
    details = error.errors(include_url=False, include_context=False)
    for detail in details:
        path: Path = detail["loc"]
        below = (other["loc"] for other in details if other["loc"] != path)
        if detail["type"] == "too_short" and any(loc[: len(path)] == path for loc in below):
            continue  # pydantic counts the valid items only; the faulty one is named itself
        match detail["type"]:
            case "extra_forbidden":
                yield path, _unknown(path, root)
            case _ if _is_key(path, root):
                yield path, _unexpected_key(path[:-1], root)
            case "missing":
                yield path, f"is missing; expected {words(annotation_at(root, path))}"
            case _:
                yield path, _unexpected(path, root, detail["input"], raw.get(path))


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the names there are."""
    names = list(known)
    close = get_close_matches(str(name), names, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""


def _unknown(path: Path, root: type[Record]) -> str:
    parent = plain(annotation_at(root, path[:-1]))
    assert is_record(parent)
    return f"{_UNKNOWN}{did_you_mean(path[-1], parent.model_fields)}"


def _is_key(path: Path, root: type[Record]) -> bool:
    """Whether a fault is of a mapping's key, not of what stands under it."""
    return path[-1:] == (_KEY,) and len(path) > 1 and _is_mapping(annotation_at(root, path[:-2]))


def _is_mapping(annotation: Any) -> bool:
    return get_origin(plain(annotation)) is dict


def _unexpected_key(path: Path, root: type[Record]) -> str:
    keys, _ = get_args(plain(annotation_at(root, path[:-1])))
    return f"expected {words(keys)}, found {_shown(path[-1], None)}"


def _unexpected(path: Path, root: type[Record], value: Any, raw: str | None) -> str:
    annotation = annotation_at(root, path)
    expected = words(annotation)
    message = f"expected {expected}, found {_shown(value, raw)}"
    if get_origin(plain(annotation)) is Literal and isinstance(value, str):
        close = get_close_matches(value, [str(choice) for choice in get_args(plain(annotation))], n=1)
        return f"{message}; did you mean '{close[0]}'?" if close else message
    if plain(annotation) is str and isinstance(value, bool | int | float):
        return f"{message}; put it in quotes to make it text"
    return message


def _shown(value: Any, raw: str | None) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {raw or value}"
        case str():
            value = _CREDENTIALS.sub("…@", value)
            cut = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}…"
            return f"the text {cut!r}"
        case tuple():
            return f"a list of {len(value)}"
        case _:
            return "a mapping"
