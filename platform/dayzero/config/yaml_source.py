"""YAML text → plain values, each with its line and column.

- Plain scalars are read as YAML 1.2's core schema, decimal numbers only: `yes`, `on`, `0o17`, `010`, `1_000`,
  `12:30` and dates are text, so nothing turns into something else unseen. Only `true` and `false` are booleans.
- Duplicate keys, tags, merge keys and non-text keys are faults; the rest of the file is still read.
- Bounded: bytes of text, depth, and nodes after aliases are expanded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from dayzero.config.errors import Fault

MAX_TEXT_BYTES = 512 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000

Path = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"(?:~|null|Null|NULL|)")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,3})?"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the text; both count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Source:
    """The values of a file (lists as tuples) and where each stands. `keys` holds the marks of mapping keys."""

    tree: Any = None
    values: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    raw: dict[Path, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def mark(self, path: Path, *, key: bool = False) -> Mark:
        """Where `path` stands, or the nearest thing above it that the text has."""
        if key and path in self.keys:
            return self.keys[path]
        for end in range(len(path), -1, -1):
            if path[:end] in self.values:
                above = end < len(path)
                return (
                    self.keys.get(path[:end], self.values[path[:end]]) if above else self.values[path[:end]]
                )
        return Mark(0, 0)

    def fault(self, path: Path, message: str, *, key: bool = False) -> Fault:
        mark = self.mark(path, key=key)
        return Fault(mark.line, mark.column, dotted(path), message)


def dotted(path: Path) -> str:
    """`("serving", "pools", 0, "name")` → `serving.pools[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def read(text: str) -> Source:
    """Never raises for what the text holds: look at `faults`."""
    source = Source()
    loader = _Loader(text) if _printable(text, source) else None
    if loader is None:
        return source
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as e:
        source.faults.append(_syntax_fault(e))
        return source
    finally:
        loader.dispose()
    if root is not None:
        _Builder(source).build(root)
    return source


def _printable(text: str, source: Source) -> bool:
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad is None:
        return True
    before = text[: bad.start()]
    line, column = before.count("\n") + 1, bad.start() - before.rfind("\n")
    source.faults.append(
        Fault(line, column, "", f"a character that YAML does not allow: U+{ord(bad[0]):04X}; remove it")
    )
    return False


def _syntax_fault(error: yaml.MarkedYAMLError) -> Fault:
    mark = error.problem_mark or error.context_mark
    message = ", ".join(part for part in (error.context, error.problem) if part)
    if "'\\t'" in message:
        message += "; indent with spaces, not tabs"
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    return Fault(line, column, "", f"not YAML: {message}")


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with the core schema's scalars and a bound on depth."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 PyYAML's own class attribute

    depth = 0
    nodes = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH or self.nodes > MAX_NODES:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            what = f"{MAX_DEPTH} levels deep" if self.depth > MAX_DEPTH else f"{MAX_NODES} values"
            raise yaml.MarkedYAMLError(problem=f"more than {what}", problem_mark=mark)
        try:
            return Composer.compose_node(self, parent, index)
        finally:
            self.depth -= 1


for _kind, _pattern in (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT)):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern.pattern})$"), None)


class _Builder:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._nodes = 0

    def build(self, root: Node) -> None:
        try:
            self._source.tree = self._value(root, ())
        except _TooLargeError as e:
            mark = e.node.start_mark
            self._source.tree = None
            self._source.faults.append(Fault(mark.line + 1, mark.column + 1, dotted(e.path), str(e)))

    def _value(self, node: Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooLargeError(f"more than {MAX_NODES} values, aliases expanded", node, path)
        if len(path) > MAX_DEPTH:
            raise _TooLargeError(f"more than {MAX_DEPTH} levels deep, aliases expanded", node, path)
        self._source.values[path] = _mark(node)
        match node:
            case ScalarNode():
                return self._scalar(node, path)
            case SequenceNode(tag=tag) if tag == _TAG + "seq":
                return tuple(self._value(child, (*path, i)) for i, child in enumerate(node.value))
            case MappingNode(tag=tag) if tag == _TAG + "map":
                return self._mapping(node, path)
        return self._refuse_tag(node, path)

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        text = self._source.raw[path] = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null" if _NULL.fullmatch(text):
                return None
            case "bool" if _BOOL.fullmatch(text):
                return text.lower() == "true"
            case "int" if _INT.fullmatch(text):
                return int(text)
            case "float" if _FLOAT.fullmatch(text):
                return float(text)
        return self._refuse_tag(node, path)

    def _mapping(self, node: MappingNode, path: Path) -> Mapping[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark = _mark(key_node)
            if not isinstance(key_node, ScalarNode):
                self._fault(mark, path, "a list or mapping as a key; expected a field's name")
                continue
            key = str(key_node.value)
            here = (*path, key)
            if key == "<<":
                self._fault(
                    mark, path, "merge keys (<<) are not read; write the fields out or use a plain alias"
                )
            elif key in values:
                self._fault(mark, here, f"given twice; the first is on line {self._source.keys[here].line}")
            else:
                self._source.keys[here] = mark
                values[key] = self._value(value_node, here)
        return values

    def _refuse_tag(self, node: Node, path: Path) -> None:
        tag = node.tag.replace(_TAG, "!!")
        self._fault(_mark(node), path, f"the tag {tag[:40]} is not read here; write a plain value")

    def _fault(self, mark: Mark, path: Path, message: str) -> None:
        self._source.faults.append(Fault(mark.line, mark.column, dotted(path), message))


class _TooLargeError(Exception):
    def __init__(self, message: str, node: Node, path: Path) -> None:
        super().__init__(message)
        self.node = node
        self.path = path


def _mark(node: Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)
