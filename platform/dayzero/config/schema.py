"""The schema as data: what stands at a path, in words. Faults and the reference page read it here."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from dayzero.config.record import Record, Words
from dayzero.config.yaml_source import Path


def annotation_at(root: type[Record], path: Path) -> Any:
    """The annotation at `path` below `root`, or None where the schema has no such place."""
    here: Any = root
    for step in path:
        base = plain(here)
        if isinstance(step, int):
            here = get_args(base)[0] if get_origin(base) is tuple else None
        elif is_record(base):
            here = get_type_hints(base, include_extras=True).get(step)
        elif get_origin(base) is dict:
            here = get_args(base)[1]
        else:
            here = None
        if here is None:
            return None
    return here


def plain(annotation: Any) -> Any:
    """Without `Annotated` and without `| None`."""
    if get_origin(annotation) is Annotated:
        return plain(get_args(annotation)[0])
    if get_origin(annotation) in (types.UnionType, Union):
        kinds = [kind for kind in get_args(annotation) if kind is not types.NoneType]
        return plain(kinds[0]) if len(kinds) == 1 else annotation
    return annotation


def is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Record)


def words(annotation: Any) -> str:
    """What is expected there: `a port, 1 to 65535`; `vllm or sim`; `a mapping with region, model, …`."""
    if get_origin(annotation) is Annotated:
        for extra in get_args(annotation)[1:]:
            if isinstance(extra, Words):
                return extra.text
        return words(get_args(annotation)[0])
    base = plain(annotation)
    if base is not annotation:
        for kind in get_args(annotation):
            if kind is not types.NoneType:
                return words(kind)
    if get_origin(base) is Literal:
        return " or ".join(str(choice) for choice in get_args(base))
    if get_origin(base) is tuple:
        return f"a list; each: {words(get_args(base)[0])}"
    if is_record(base):
        return f"a mapping with the fields {', '.join(base.model_fields)}"
    raise TypeError(f"{annotation!r} says nothing of what it expects: give it Words")


def records(root: type[Record], name: str = "") -> Iterator[tuple[str, type[Record]]]:
    """Every record below `root` with its dotted path, parents first; `[]` stands for each item of a list."""
    yield name, root
    for field, annotation in get_type_hints(root, include_extras=True).items():
        if field not in root.model_fields:
            continue
        base = plain(annotation)
        path = f"{name}.{field}".removeprefix(".")
        if get_origin(base) is tuple:
            base, path = plain(get_args(base)[0]), f"{path}[]"
        if is_record(base):
            yield from records(base, path)
