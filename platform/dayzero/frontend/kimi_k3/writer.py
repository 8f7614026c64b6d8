"""A block → its pieces: markup and texts, in the order of the prompt (KIMI_K3 section 3).

Every string of the conversation becomes a text of its own here, and nothing else: it is never joined to markup.
"""

from dayzero.frontend.kimi_k3.arguments import Unparsed, arguments_of
from dayzero.frontend.kimi_k3.blocks import Answer, Block, Call, Content, Opening, Picture, Result, Said
from dayzero.frontend.kimi_k3.python_json import check_text
from dayzero.frontend.kimi_k3.segments import Markup, Piece, escape


class Writer:
    """Holds nothing of what it wrote."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup

    def pieces(self, block: Block, param: str) -> list[Piece]:
        """`param`: the block's field, for errors. Raises FrontendError: what is not text, what arguments cannot be."""
        out: list[Piece] = []
        match block:
            case Said():
                self._said(block, param, out)
            case Answer():
                self._answer(block, param, out)
            case Result():
                self._result(block, param, out)
            case Opening():
                self._opening(block.thinking, out)
        return out

    def _said(self, block: Said, param: str, out: list[Piece]) -> None:
        markup = self._markup
        if block.name is None and block.kind is None:
            out.append(markup.plain_message[block.role])
        else:
            out.append(markup.message[block.role])
            self._name(block.name, param, out)
            out.append(markup.sep if block.kind is None else markup.kind[block.kind])
        self._content(block.content, param if block.kind else f"{param}.content", out)
        out.append(markup.end)

    def _answer(self, block: Answer, param: str, out: list[Piece]) -> None:
        markup = self._markup
        out.append(markup.message["assistant"])
        self._name(block.name, param, out)
        out.append(markup.sep)
        if block.thinking:
            out += (markup.think, check_text(block.reasoning, f"{param}.reasoning_content"))
            out.append(markup.think_to_response)
        else:
            out.append(markup.response)
        self._content(block.content, f"{param}.content", out)
        if block.left_open:
            return
        out.append(markup.response_end)
        if block.calls:
            out.append(markup.tools)
            for i, call in enumerate(block.calls):
                self._call(call, i, f"{param}.tool_calls[{i}].function", out)
            out.append(markup.tools_end)
        out.append(markup.end)

    def _call(self, call: Call, place: int, param: str, out: list[Piece]) -> None:
        markup = self._markup
        out += (markup.call, escape(check_text(call.tool, f"{param}.name")))
        out += (markup.index, str(place + 1), markup.quote_sep)
        arguments = arguments_of(call.arguments, f"{param}.arguments")
        if isinstance(arguments, Unparsed):
            out += (markup.json, arguments.text, markup.json_end)
        else:
            for argument in arguments:
                out += (markup.argument, escape(argument.key), markup.argument_type[argument.type])
                out += (argument.text, markup.argument_end)
        out.append(markup.call_end)

    def _result(self, block: Result, param: str, out: list[Piece]) -> None:
        markup = self._markup
        out += (markup.message["tool"], markup.tool, escape(check_text(block.tool, f"{param}.name")))
        out += (markup.index, str(block.index), markup.quote_sep)
        self._content(block.content, f"{param}.content", out)
        out.append(markup.end)

    def _opening(self, thinking: bool, out: list[Piece]) -> None:  # noqa: FBT001  the block's only field
        out.append(self._markup.plain_message["assistant"])
        out.append(self._markup.think if thinking else self._markup.response)

    def _name(self, name: str | None, param: str, out: list[Piece]) -> None:
        if name is not None:
            out += (self._markup.name, escape(check_text(name, f"{param}.name")), self._markup.quote)

    def _content(self, content: Content, param: str, out: list[Piece]) -> None:
        for part in content:
            if isinstance(part, Picture):
                self._picture(part, out)
            else:
                out.append(check_text(part, param))

    def _picture(self, picture: Picture, out: list[Piece]) -> None:
        markup = self._markup
        out += (markup.media_begin, f"image {picture.width_px}x{picture.height_px}")
        out += (markup.media_content, markup.media_pads(picture.pads), markup.media_end)
