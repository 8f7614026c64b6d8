"""A Kimi K3 turn's grammar in xgrammar's form: vLLM's own structural tag, made exact for token ids.

What vLLM's tag says stays; what is changed, and why:

- Markers are token ids. The text `<|open|>` in a tag also matches ordinary tokens that spell it, and those open nothing.
  No text holds a special id, because the tokenizer the grammar is compiled for gives those none
  (`dayzero.serving.k3_tokenizer`), so text may spell what it likes.
- The tag begins where the prompt left off: vLLM's gate for reasoning wants text, so `think` is in the tag here.
- A response format bounds the response, which may be empty where calls follow.
- `tool_choice` and `parallel_tool_calls` bound the number of calls.
- With `text_characters` the turn is sure to end (see `vllm_kimi_k3_arguments`), in calls numbered 1 and 2.

What the tag does not enforce: a call's index.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from dayzero.errors import InvalidRequestError
from dayzero.frontend.kimi_k3.grammar import GrammarTool, TurnGrammar
from dayzero.frontend.kimi_k3.schemas import MAX_BYTES, schema_fault
from dayzero.frontend.kimi_k3.specials import SPECIALS, Specials
from dayzero.frontend.protocol import Channel
from dayzero.serving.engines.vllm_kimi_k3_arguments import arguments
from dayzero.serving.engines.vllm_kimi_k3_formats import Exact, Format, either, optional, plus, sequence
from dayzero.serving.engines.vllm_kimi_k3_schemas import json_format

MAX_TAG_BYTES = 1024 * 1024
_BYTES = 256
_NO_CALLS = "none"
_FORCED = ("required", "one")
_SINGLE = ("one", "at_most_one")


@lru_cache(maxsize=64)
def kimi_k3_tag(spec: str, vocabulary_size: int) -> str:
    """A `TurnGrammar`, encoded, as vLLM's `structural_tag`. A conversation asks for the same one at every turn.

    Raises InvalidRequestError naming the field whose schema cannot be a grammar.
    """
    try:
        grammar = TurnGrammar.decode(spec)
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequestError.of("grammar", "this is no grammar of a Kimi K3 turn") from None
    if len(spec) > MAX_BYTES:
        raise InvalidRequestError.of(
            "tools" if grammar.tools else "response_format",
            f"the schemas have {len(spec):,} bytes together, at most {MAX_BYTES:,} are possible: simplify them",
        )
    _check_schemas(grammar)
    tag = json.dumps(structural_tag(grammar, Specials(vocabulary_size - SPECIALS)))
    if len(tag) > MAX_TAG_BYTES:
        raise InvalidRequestError.of(
            "tools" if grammar.tools else "response_format",
            f"the schemas make a grammar of {len(tag):,} bytes, at most {MAX_TAG_BYTES:,} are possible: simplify them",
        )
    _check_compiles(grammar)
    return tag


def _check_schemas(grammar: TurnGrammar) -> None:
    """The gateway's bounds again: whoever sent it, what is compiled here must not hold up the engine."""
    for number, tool in enumerate(grammar.tools, start=1):
        if tool.parameters is not None and (fault := schema_fault(tool.parameters)):
            raise InvalidRequestError.of("tools", f"the parameters of tool {number}: {fault}")
    if grammar.schema is not None and (fault := schema_fault(grammar.schema)):
        raise InvalidRequestError.of("response_format", f"the response's schema: {fault}")


def structural_tag(grammar: TurnGrammar, specials: Specials) -> dict[str, Any]:
    """What vLLM takes as `structural_tag`, as parsed JSON."""
    exact = Exact(specials, grammar.text_characters)
    turn = _Turn(grammar, exact)
    return {"type": "structural_tag", "format": turn.format()}


def _check_compiles(grammar: TurnGrammar) -> None:
    """Raises InvalidRequestError naming the field whose schema xgrammar refuses."""
    if _compiles(grammar):
        return
    for number, tool in enumerate(grammar.tools, start=1):
        alone = TurnGrammar(start=grammar.start, tools=(tool,), calls="one")
        if not _compiles(alone):
            raise InvalidRequestError.of(
                "tools",
                f"the parameters of tool {number} cannot be made into a grammar: simplify its schema "
                "(patterns first), or take `strict` away",
            )
    raise InvalidRequestError.of(
        "response_format",
        "the response's schema cannot be made into a grammar: simplify it (patterns first)",
    )


def _compiles(grammar: TurnGrammar) -> bool:
    """Tried over a vocabulary of single bytes, in milliseconds: EngineCore would say so only when the request runs."""
    try:
        _byte_compiler().compile_structural_tag(structural_tag(grammar, Specials(_BYTES)))
    except Exception:  # noqa: BLE001 - of many kinds; all say that the tag cannot be used
        return False
    return True


@lru_cache(maxsize=1)
def _byte_compiler() -> Any:
    import xgrammar  # noqa: PLC0415 - imports torch

    bytes_alone = [bytes([byte]) for byte in range(_BYTES)]
    names = [b"\xff" + name.encode() for _, name in sorted(Specials(_BYTES).names().items())]
    info = xgrammar.TokenizerInfo([*bytes_alone, *names], vocab_type=xgrammar.VocabType.RAW)
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class _Turn:
    def __init__(self, grammar: TurnGrammar, exact: Exact) -> None:
        self._grammar = grammar
        self._exact = exact

    def format(self) -> Format:
        grammar, exact = self._grammar, self._exact
        before: list[Format] = []
        if grammar.start is Channel.THINK:
            before = [exact.text(), *exact.close("think"), *exact.open("response")]
        return sequence(*before, *self._answer(), *exact.close("message"))

    def _answer(self) -> list[Format]:
        """The rest of `response`, and `tools`."""
        grammar, close = self._grammar, self._exact.close("response")
        bound = self._response()
        if not grammar.tools or grammar.calls == _NO_CALLS:
            return [bound, *close]
        tools = self._tools()
        if grammar.calls in _FORCED:
            return [bound if grammar.response == "text" else optional(bound), *close, tools]
        if grammar.response == "text":
            return [bound, *close, optional(tools)]
        return [either(sequence(bound, *close, optional(tools)), sequence(*close, tools))]

    def _response(self) -> Format:
        grammar = self._grammar
        match grammar.response:
            case "text":
                return self._exact.text()
            case "json_object":
                return json_format({"type": "object"}, self._exact)
            case "json_schema":
                return json_format(grammar.schema or {}, self._exact)

    def _tools(self) -> Format:
        grammar, exact = self._grammar, self._exact
        calls = [(tag, tool) for tag, tool in zip(_call_tags(grammar.tools), grammar.tools, strict=True)]
        if grammar.calls in _SINGLE:
            inner = self._one_of(calls, "1")
        elif grammar.text_characters is None:
            inner = plus(self._one_of(calls, "[1-9][0-9]{0,4}"))
        else:
            inner = sequence(self._one_of(calls, "1"), optional(self._one_of(calls, "2")))
        return sequence(*exact.open("tools"), inner, *exact.close("tools"))

    def _one_of(self, calls: Sequence[tuple[Format, GrammarTool]], index: str) -> Format:
        return either(*(self._call(tag, tool, index) for tag, tool in calls))

    def _call(self, tag: Format, tool: GrammarTool, index: str) -> Format:
        """`tag`: vLLM's, whose content is the index, the end of the opening tag, and the arguments."""
        exact = self._exact
        _, opened, _ = tag["content"]["elements"]
        return sequence(
            *exact.marked(tag["begin"]),
            {"type": "regex", "pattern": index},
            *exact.marked(opened["value"]),
            *arguments(tool.parameters, exact),
            *exact.marked(tag["end"]),
        )


def _call_tags(tools: Sequence[GrammarTool]) -> list[Format]:
    """One a tool, as vLLM has them."""
    from vllm.tool_parsers.structural_tag_registry import get_kimi_k3_structural_tag  # noqa: PLC0415
    from xgrammar.openai_tool_call_schema import FunctionToolParam  # noqa: PLC0415

    functions = [FunctionToolParam.model_validate({"function": {"name": tool.name}}) for tool in tools]
    tag = get_kimi_k3_structural_tag(functions, [], "required", reasoning=False).model_dump()
    channel = tag["format"]["elements"][-2]
    tags: list[Format] = channel["content"]["tags"]
    return tags
