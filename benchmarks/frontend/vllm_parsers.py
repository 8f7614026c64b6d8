"""vLLM's own Kimi K3 parsers over the same ids, without an engine: the peer of the decoder, in tests and benchmarks.

They read text, so the ids are spelled out first, markers too, as vLLM's detokenizer does when a parser asks for it.
The stop id and what follows it are left away, as its engine does.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dayzero.frontend.detokenizer import Detokenizer
from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
from dayzero.frontend.protocol import Channel


@dataclass
class PeerAnswer:
    """`calls`: names and arguments as sent."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


class PeerTokenizer:
    """As much of a tokenizer as the parsers use."""

    def __init__(self, tokenizer: K3Tokenizer) -> None:
        self._tokenizer = tokenizer
        specials = tokenizer.vocabulary.specials
        self._marks = {
            "<|open|>": specials.open,
            "<|close|>": specials.close,
            "<|sep|>": specials.sep,
            "<|end_of_msg|>": specials.end_of_msg,
        }

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        del add_special_tokens
        ids: list[int] = []
        while text:
            found = [(text.find(mark), mark) for mark in self._marks if mark in text]
            at, mark = min(found, default=(len(text), ""))
            plain = self._tokenizer.encode([text[:at]])[0]
            ids += memoryview(plain).cast("I")
            if mark:
                ids.append(self._marks[mark])
            text = text[at + len(mark) :]
        return ids

    def get_vocab(self) -> dict[str, int]:
        return dict(self._marks)


class Peer:
    """Raises ImportError where vLLM is not installed."""

    def __init__(self, tokenizer: K3Tokenizer) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.parser_manager import ParserManager

        self._request_type = ChatCompletionRequest
        self._tokenizer = PeerTokenizer(tokenizer)
        self._vocabulary = tokenizer.vocabulary
        table = self._vocabulary.table
        self._spelled = replace(table, visible=table.spelled)
        self._parser = ParserManager.get_parser(
            tool_parser_name="kimi_k3",
            reasoning_parser_name="kimi_k3",
            enable_auto_tools=True,
            tokenizer=self._tokenizer,
        )

    def request(self, tools: Iterable[str], tool_choice: str = "auto") -> Any:
        declared = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
        fields = {"tools": declared, "tool_choice": tool_choice} if declared else {}
        return self._request_type(model="kimi-k3", messages=[{"role": "user", "content": "."}], **fields)

    def buffered(self, ids: Sequence[int], start: Channel, request: Any) -> PeerAnswer:
        text = Detokenizer(self._spelled).push(self._before_stop(ids))
        reasoning, content, calls = self._new(start).parse(text, request, enable_auto_tools=True)
        return PeerAnswer(reasoning or "", content or "", [(c.name, c.arguments) for c in calls or []])

    def streamed(self, parts: Iterable[Sequence[int]], start: Channel, request: Any) -> PeerAnswer:
        parser, text, answer = self._new(start), Detokenizer(self._spelled), PeerAnswer()
        prompt = self._tokenizer.encode(
            "<|open|>think<|sep|>" if start is Channel.THINK else "<|open|>response<|sep|>"
        )
        arguments: list[str] = []
        for part in parts:
            ids = list(self._before_stop(part))
            delta = parser.parse_delta(text.push(ids), ids, request, prompt_token_ids=prompt, finished=False)
            if delta is not None:
                answer.reasoning += delta.reasoning or ""
                answer.content += delta.content or ""
                self._take_calls(delta.tool_calls or [], answer, arguments)
            if len(ids) < len(part):
                break
        answer.calls = [(name, joined) for (name, _), joined in zip(answer.calls, arguments, strict=True)]
        return answer

    def _new(self, start: Channel) -> Any:
        return self._parser(self._tokenizer, None, chat_template_kwargs={"thinking": start is Channel.THINK})

    def _before_stop(self, ids: Sequence[int]) -> Sequence[int]:
        stop = self._vocabulary.specials.end_of_msg
        return ids[: list(ids).index(stop)] if stop in ids else ids

    @staticmethod
    def _take_calls(calls: Iterable[Any], answer: PeerAnswer, arguments: list[str]) -> None:
        for call in calls:
            function = call.function if isinstance(call.function, dict) else call.function.model_dump()
            if call.index == len(answer.calls):
                answer.calls.append((function["name"], ""))
                arguments.append("")
            arguments[call.index] += function.get("arguments") or ""


def values(calls: Iterable[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Arguments as values, so that no two spellings of one JSON differ; those that are none as they are."""
    read = []
    for name, arguments in calls:
        try:
            read.append((name, json.loads(arguments)))
        except ValueError:
            read.append((name, arguments))
    return read
