"""A script: what a simulated Kimi K3 answers to what. YAML, checked like a fleet file; docs/kimi-k3-script.md shows one.

- The first rule whose conditions all hold answers; else `default`; without one, words at random.
- What an answer leaves out is made up: reasoning and content of random words, of lengths that the prompt draws.
"""

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from dayzero.config.faults import field_faults
from dayzero.config.record import Flag, Record, Share, Words
from dayzero.config.yaml_source import MAX_TEXT_BYTES, Path, read
from dayzero.engine.errors import EngineStartError
from dayzero.engine.scripted.asked import Asked
from dayzero.engine.scripted.oddities import DISTORTIONS
from dayzero.engine.scripted.turn import Said, SaidCall, turn
from dayzero.frontend.protocol import Channel

ODDITY_GROUP = "oddity"
"""A rule's pattern with a group of this name lets the text choose the oddity."""
_SHIPPED = "kimi_k3.yaml"


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as e:
        raise ValueError(f"not a regular expression: {e}") from None
    return value


def _oddity(value: str) -> str:
    if value not in DISTORTIONS:
        raise ValueError("no such oddity")
    return value


Text = Annotated[str, Words("text")]
SomeText = Annotated[str, Field(min_length=1), Words("text, one character or more")]
Pattern = Annotated[str, AfterValidator(_pattern), Words("a regular expression as Python reads them")]
ToolName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,255}$"),
    Words("a tool's name: a letter or _ first, then letters, digits, _ and -, at most 256"),
]
OddityName = Annotated[str, AfterValidator(_oddity), Words(f"an oddity: {', '.join(sorted(DISTORTIONS))}")]


class When(Record):
    """Conditions on the last message of a user or a tool; all that are given must hold."""

    contains: SomeText | None = None
    """Its text has this in it; capitals do not matter."""
    regex: Pattern | None = None
    """Somewhere in its text this matches. A group `oddity` names the answer's oddity; of one that nobody can make, the answer says so."""
    role: Annotated[Literal["user", "tool"], Words("user or tool")] | None = None
    """Whose it is."""
    tools: Flag | None = None
    """The request declares tools, or it does not."""

    def holds(self, asked: Asked) -> bool:
        return (
            (self.contains is None or self.contains.casefold() in asked.text.casefold())
            and (self.regex is None or re.search(self.regex, asked.text) is not None)
            and (self.role is None or self.role == asked.role)
            and (self.tools is None or self.tools == asked.tools)
        )


class Call(Record):
    """A tool call."""

    name: ToolName
    """The tool's."""
    arguments: Annotated[dict[str, Any], Words("a mapping from key to value")] = Field(default_factory=dict)
    """As JSON has them."""


class Answer(Record):
    """What is said."""

    reasoning: Text | None = None
    """Absent: words at random. Not said where thinking is off."""
    content: Text | None = None
    """Absent: words at random."""
    tool_calls: Annotated[tuple[Call, ...], Words("a list of calls, each with name and arguments")] = ()
    """In this order."""
    oddity: OddityName | None = None
    """What is odd about it, where its turn has what that takes."""
    finish: Annotated[Literal["stop", "length"], Words("stop or length")] = "stop"
    """`length`: it ends in the middle of its last text, as an answer does that meets its limit."""


class Rule(Record):
    """One condition and its answer."""

    when: When
    answer: Answer


class Script(Record):
    """A whole script."""

    rules: Annotated[tuple[Rule, ...], Words("a list of rules, each with when and answer")] = ()
    """In order; the first that holds answers."""
    default: Answer = Answer()
    """Where no rule holds."""
    oddities: Annotated[
        dict[OddityName, Share], Words("a mapping from oddity to its share of answers, 0 to 1")
    ] = Field(default_factory=dict)
    """How often an answer without an oddity of its own gets one, drawn from the prompt and the seed."""

    def answer_to(self, asked: Asked) -> Answer:
        for rule in self.rules:
            if rule.when.holds(asked):
                return _with_oddity(rule, asked)
        return self.default


def _with_oddity(rule: Rule, asked: Asked) -> Answer:
    pattern = rule.when.regex
    match = re.search(pattern, asked.text) if pattern is not None else None
    named = match.groupdict().get(ODDITY_GROUP) if match is not None else None
    if named is None:
        return rule.answer
    return rule.answer.model_copy(update={"oddity": named}) if named in DISTORTIONS else _no_oddity(named)


def _no_oddity(named: str) -> Answer:
    """Said aloud: whoever asks for an oddity and gets a whole answer would look for the fault in the decoder."""
    there_are = ", ".join(sorted(DISTORTIONS))
    return Answer(
        reasoning="", content=f"No script can make an oddity called {named[:64]}. It can make: {there_are}."
    )


def parse(text: str, name: str = "script.yaml") -> Script:
    """Raises EngineStartError with all faults, each with its line and field."""
    source = read(text)
    faults = list(source.faults)
    script: Script | None = None
    try:
        script = Script.model_validate({} if source.tree is None and not faults else source.tree)
    except ValidationError as error:
        faults += field_faults(error, Script, source)
    else:
        faults += [source.fault(path, message) for path, message in _findings(script)]
    if script is None or faults:
        raise EngineStartError("\n".join(fault.text(name) for fault in sorted(set(faults))))
    return script


def _findings(script: Script) -> Iterator[tuple[Path, str]]:
    """What one field cannot know."""
    if sum(script.oddities.values()) > 1:
        yield ("oddities",), "the shares come to more than 1"
    for number, rule in enumerate(script.rules):
        if rule.when == When():
            yield ("rules", number, "when"), "no condition: write it as `default`"
        if wrong := _unfit(rule.answer):
            yield ("rules", number, "answer", "oddity"), wrong
    if wrong := _unfit(script.default):
        yield ("default", "oddity"), wrong


def _unfit(answer: Answer) -> str:
    if answer.oddity is None:
        return ""
    distortion = DISTORTIONS[answer.oddity]
    fits = distortion.fits(turn(said(answer, "words", "words"), Channel.THINK))
    return "" if fits else f"{answer.oddity} needs an answer with {', '.join(distortion.needs)} in it"


def said(answer: Answer, reasoning: str, content: str) -> Said:
    """`reasoning`, `content`: what is said where the answer leaves them out."""
    return Said(
        reasoning if answer.reasoning is None else answer.reasoning,
        content if answer.content is None else answer.content,
        tuple(SaidCall(call.name, call.arguments) for call in answer.tool_calls),
    )


def load(path: FilePath | None) -> Script:
    """None: the one that ships. Raises EngineStartError."""
    if path is None:
        return parse(resources.files(__package__).joinpath(_SHIPPED).read_text("utf-8"), _SHIPPED)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EngineStartError(f"the script {path} cannot be read: {reason}") from error
    if len(data) > MAX_TEXT_BYTES:
        raise EngineStartError(f"the script {path} is larger than {MAX_TEXT_BYTES} bytes")
    return parse(text, str(path))
