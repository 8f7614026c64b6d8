"""A Jinja chat template as Hugging Face renders it, in a sandbox.

- The environment is Hugging Face's: immutable sandbox, trimmed blocks, loop controls, `raise_exception`,
  `strftime_now`, `tojson` that escapes nothing, `{% generation %}`.
- `tojson` gives a user's string: whatever JSON it makes, none of it can be a control token.
- Errors tell what the template itself says, never what it was given.
- Rendering is safe in any thread; a compiled template holds no state.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dayzero.frontend.chat_template.user_text import UserText, clean
from dayzero.frontend.errors import FrontendError, FrontendLoadError

_MARKER = "dayzero_user"
"""The context's variable that holds the function which marks a user's string."""

_log = logging.getLogger(__name__)


class ContentForm(StrEnum):
    """What a template takes as a message's content."""

    STRING = "string"
    PARTS = "parts"
    EITHER = "either"


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """`reads` names the variables it looks up; `mentions` tells whether a word stands anywhere in it."""

    source: str
    compiled: jinja2.Template
    content_form: ContentForm
    reads: frozenset[str]

    @classmethod
    def compile(cls, source: str, *, clock: Callable[[], datetime] = utc_now) -> "ChatTemplate":
        """Raises FrontendLoadError with the line at fault."""
        environment = _environment(clock)
        try:
            tree = environment.parse(source)
            compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as e:
            raise FrontendLoadError(f"the chat template's line {e.lineno} is not valid: {e.message}") from e
        return cls(source, compiled, _content_form(tree), _names_read(tree))

    def mentions(self, word: str) -> bool:
        return word in self.source

    def render(self, variables: Mapping[str, Any], user: Callable[[Any], Any]) -> str:
        """`user` marks a user's string. Raises FrontendError."""
        try:
            # Plain characters from here on: a text that is the user's alone would still read clean.
            return str.__str__(self.compiled.render({**variables, _MARKER: user}))
        except _RefusedByTemplateError as e:
            # Shown only when the template holds it word for word: then nothing of the user's is in it.
            said = f": {e.said}" if e.said and e.said in self.source else ""
            raise FrontendError(
                f"the model's chat template refuses these messages{said}", param="messages"
            ) from None
        except Exception as e:  # noqa: BLE001  a template may fail in any way; none may show what is in it
            _log.warning("the chat template failed with %s", type(e).__name__)
            raise FrontendError(
                "the model's chat template cannot render these messages; try a plain alternation of user and "
                "assistant messages",
                param="messages",
            ) from None


class _RefusedByTemplateError(Exception):
    def __init__(self, said: str) -> None:
        super().__init__("raise_exception")
        self.said = said


class _Generation(Extension):
    """`{% generation %}` marks an assistant's words for training; here it is only its body."""

    tags = {  # noqa: RUF012  as the base declares it
        "generation"
    }

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _concat(parts: Iterable[str]) -> str:
    """What a macro or a block prints. If all of it is the user's, it is a user's string still."""
    printed = [part for part in parts if part]
    if printed and all(isinstance(part, UserText) for part in printed):
        return printed[0].renew("".join(map(clean, printed)))  # type: ignore[attr-defined, no-any-return]
    return "".join(printed)


class _Environment(ImmutableSandboxedEnvironment):
    concat = staticmethod(_concat)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, UserText) and attr in UserText.__slots__:
            return False
        return super().is_safe_attribute(obj, attr, value)


def _environment(clock: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=[_Generation, loopcontrols],
    )
    environment.filters.update({name: _on_clean(filter_) for name, filter_ in environment.filters.items()})
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: clock().strftime(form)
    return environment


def _on_clean(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that works on a user's string as it is and gives user's strings, as the string's own methods do."""
    value_at = 1 if getattr(filter_, "jinja_pass_arg", None) else 0

    @wraps(filter_)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = args[value_at]
        if not isinstance(value, UserText):
            return filter_(*args, **kwargs)
        given = [*args[:value_at], *(clean(arg) for arg in args[value_at:])]
        result = filter_(*given, **{key: clean(arg) for key, arg in kwargs.items()})
        return value.renew(list(result) if isinstance(result, Iterator) else result)

    return call


def _raise_exception(message: object) -> NoReturn:
    raise _RefusedByTemplateError(str(message))


@jinja2.pass_context
def _tojson(  # noqa: PLR0917  templates pass them by place
    context: Context,
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    text = json.dumps(
        clean(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return context[_MARKER](text)


def _names_read(tree: nodes.Template) -> frozenset[str]:
    return frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")


def _content_form(tree: nodes.Template) -> ContentForm:
    """Whether the template loops over a message's content, and whether it also asks if that is a string."""
    names = {"content", *_names_of_content(tree)}
    loops = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
    if not loops:
        return ContentForm.STRING
    asks = any(t.name == "string" and _is_content(t.node, names) for t in tree.find_all(nodes.Test))
    return ContentForm.EITHER if asks else ContentForm.PARTS


def _names_of_content(tree: nodes.Template) -> Iterator[str]:
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, set()):
            yield assignment.target.name


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    match node:
        case nodes.Filter():
            return _is_content(node.node, names)
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Name():
            return node.name in names
        case _:
            return False
