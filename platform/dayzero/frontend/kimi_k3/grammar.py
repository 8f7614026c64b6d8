"""What a turn of Kimi K3 must obey, as a value that crosses the engine seam, and when a conversation asks for one.

An engine turns it into its own form: vLLM into its K3 structural tag, the simulated one into a random valid turn.

- One table of tools: what may be called is what was declared, by the request or by its messages.
- A schema enters a grammar only within the bounds of `schemas`; one that a client relies on (strict tools, response
  formats) is a 400 outside them, any other is left out and the arguments stay free.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dayzero.frontend.conversation import (
    Conversation,
    ResponseFormatKind,
    Tool,
    ToolChoiceMode,
)
from dayzero.frontend.errors import FrontendError
from dayzero.frontend.kimi_k3.schemas import MAX_BYTES, schema_fault
from dayzero.frontend.protocol import Channel, GrammarRequest

KIND = "kimi_k3"


class GrammarTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that may be called. `parameters` None: any arguments, as for a tool that is not strict."""

    name: str
    parameters: dict[str, Any] | None = None


class TurnGrammar(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The turn from where the prompt left it open.

    `start`: the channel that the prompt opened. `tools`: those that may be called, none for `calls: none`.
    `calls`: none; `optional` any number; `required` at least one; `one` exactly one; `at_most_one`.
    `response`: what the response channel holds: any text, a JSON object, or JSON of `schema`; it may be empty where
    calls follow. `text_characters`: a bound on what has none of its own (text, strings, digits, arguments, calls), for
    a model that does not know when to stop; None leaves it to the model.
    """

    start: Channel
    tools: tuple[GrammarTool, ...] = ()
    calls: Literal["none", "optional", "required", "one", "at_most_one"] = "none"
    response: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | None = None
    text_characters: int | None = None

    def encode(self) -> str:
        """For `GrammarRequest.spec`, whose kind is `kimi_k3`."""
        return _encoder.encode(self).decode()

    @classmethod
    def decode(cls, spec: str) -> "TurnGrammar":
        """Raises msgspec.MsgspecError."""
        return _decoder.decode(spec)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TurnGrammar)


def turn_grammar(
    conversation: Conversation,
    tools: tuple[Tool, ...],
    start: Channel,
    *,
    text_characters: int | None = None,
) -> GrammarRequest | None:
    """None where the answer is free: no call is forced, no tool is strict, no format is asked for.

    `tools`: of all carriers. Raises FrontendError for a choice of a tool that is not declared, and for a schema that
    cannot be a grammar.

    - A forced call is bounded by its tool's schema, strict or not: arguments that its tool cannot take help nobody.
    - A response that the request began itself (`partial`) is not bounded by a format: a grammar would begin anew.
    """
    calls, callable_tools = _calls(conversation, tools)
    response, schema = _response(conversation)
    if calls == "none" and response == "text":
        return None
    grammar = TurnGrammar(
        start=start,
        tools=callable_tools,
        calls=calls,
        response=response,
        schema=schema,
        text_characters=text_characters,
    )
    field = "tools" if grammar.tools else "response_format.json_schema.schema"
    try:
        spec = grammar.encode()
    except (UnicodeEncodeError, RecursionError):
        raise FrontendError("a schema holds text that is not valid Unicode", param=field) from None
    if len(spec) > MAX_BYTES:
        raise FrontendError(
            f"the schemas that bound the answer have {len(spec):,} bytes together, at most {MAX_BYTES:,} are possible: "
            "make fewer tools strict",
            param=field,
        )
    return GrammarRequest(KIND, spec)


_Calls = Literal["none", "optional", "required", "one", "at_most_one"]
_Response = Literal["text", "json_object", "json_schema"]


def _calls(conversation: Conversation, tools: tuple[Tool, ...]) -> tuple[_Calls, tuple[GrammarTool, ...]]:
    choice = conversation.tool_choice
    carriers = _carriers(conversation)
    forced = choice.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
    if choice.mode is ToolChoiceMode.NAMED:
        chosen = tuple(tool for tool in tools if tool.name == choice.name)
        if not chosen:
            raise FrontendError("no tool of this name is declared", param="tool_choice.function.name")
        return "one", (_grammar_tool(chosen[0], carriers, forced=True),)
    if choice.mode is ToolChoiceMode.REQUIRED and not tools:
        raise FrontendError("a call is required, but no tools are declared", param="tool_choice")
    free = choice.parallel and not any(tool.strict for tool in tools)
    if not tools or choice.mode is ToolChoiceMode.NONE or (free and not forced):
        return "none", ()
    allowed = tuple(_grammar_tool(tool, carriers, forced=forced) for tool in tools)
    if forced:
        return ("required" if choice.parallel else "one"), allowed
    return ("optional" if choice.parallel else "at_most_one"), allowed


def _grammar_tool(tool: Tool, carriers: Mapping[int, str], *, forced: bool) -> GrammarTool:
    parameters = parameters_of(tool)
    if parameters is None or not (tool.strict or forced):
        return GrammarTool(tool.name)
    fault = schema_fault(parameters)
    if fault is None and parameters.get("type", "object") != "object":
        fault = "the parameters of a tool must be of type object"
    if fault is None:
        return GrammarTool(tool.name, dict(parameters))
    if tool.strict:
        field = f"{carriers.get(id(tool), 'tools')}.function.parameters"
        raise FrontendError(f"this cannot be a strict tool's schema: {fault}", param=field)
    return GrammarTool(tool.name)


def parameters_of(tool: Tool) -> Mapping[str, Any] | None:
    """The JSON schema of a tool's arguments, where it declares one."""
    function = tool.spec.get("function", tool.spec)
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    return parameters if isinstance(parameters, Mapping) else None


def _carriers(conversation: Conversation) -> dict[int, str]:
    """Where each tool stands in the request, by identity."""
    found = {id(tool): f"tools[{i}]" for i, tool in enumerate(conversation.tools)}
    for at, message in enumerate(conversation.messages):
        found |= {id(tool): f"messages[{at}].tools[{i}]" for i, tool in enumerate(message.tools)}
    return found


def _response(conversation: Conversation) -> tuple[_Response, dict[str, Any] | None]:
    wanted = conversation.response_format
    if conversation.messages and conversation.messages[-1].partial:
        return "text", None
    match wanted.kind:
        case ResponseFormatKind.TEXT:
            return "text", None
        case ResponseFormatKind.JSON_OBJECT:
            return "json_object", None
        case ResponseFormatKind.JSON_SCHEMA:
            schema = dict(wanted.schema or {})
            if (fault := schema_fault(schema)) is not None:
                raise FrontendError(
                    f"this cannot be a response's schema: {fault}", param="response_format.json_schema.schema"
                )
            return "json_schema", schema
