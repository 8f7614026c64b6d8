"""Agents' conversations of any length: tools, reasoning, calls with arguments, results; made of this repository's text."""

import json
import pickle
import random
from functools import cache
from pathlib import Path

from dayzero.frontend.conversation import Conversation, Message, Role, Text, Thinking, Tool, ToolCall

ROOT = Path(__file__).resolve().parents[2]
TOOLS = 26
"""As many as coding agents declare (KIMI_K3 section 5)."""


@cache
def prose() -> str:
    """Code, English and tables, about a megabyte; the vocabulary shipped here was not made from all of it."""
    folders = ("platform", "router", "deployments", "docs")
    files = sorted(
        path for one in folders for path in (ROOT / one).rglob("*") if path.suffix in {".py", ".md"}
    )
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


class Talk:
    """A conversation that grows. `seed`: equal seeds say the same."""

    def __init__(self, seed: int = 0, *, result_characters: int = 2400) -> None:
        self._random = random.Random(seed)
        self._result_characters = result_characters
        self._tools = tuple(self._tool(i) for i in range(TOOLS))
        self._messages = [
            Message(Role.SYSTEM, (Text(self._words(12_000)),)),
            Message(Role.USER, (Text(self._words(400)),)),
        ]

    def grow(self, turns: int = 1) -> None:
        for _ in range(turns):
            self._messages += self._turn()

    def request(self, *, thinking: bool = True) -> Conversation:
        return self._fresh(self._messages, thinking=thinking)

    def next_request(self) -> Conversation:
        """With one turn more, which is another at every call."""
        return self._fresh([*self._messages, *self._turn()], thinking=True)

    def _fresh(self, messages: list[Message], *, thinking: bool) -> Conversation:
        """As it comes out of a request's body: every string a new one, whose hash nobody has computed."""
        whole = Conversation(tuple(messages), self._tools, thinking=Thinking(thinking, "max"))
        return pickle.loads(pickle.dumps(whole))  # type: ignore[no-any-return]

    def _turn(self) -> list[Message]:
        """A thought, one call with four arguments, and its result."""
        at = len(self._messages)
        name = self._tools[at % TOOLS].name
        arguments = {
            "path": self._words(30),
            "content": self._words(min(400, self._result_characters)),
            "line": at,
            "options": {"recursive": True, "limits": [at, None, 1.5]},
        }
        call = ToolCall(f"functions.{name}:{at}", name, json.dumps(arguments))
        said, thought = Text(self._words(80)), self._words(240)
        return [
            Message(Role.ASSISTANT, (said,), reasoning=thought, tool_calls=(call,)),
            Message(Role.TOOL, (Text(self._words(self._result_characters)),), tool_call_id=call.id),
        ]

    def _words(self, characters: int) -> str:
        text = prose()
        start = self._random.randrange(len(text) - characters)
        return f"{self._random.randrange(10**9)} {text[start : start + characters]}"

    def _tool(self, place: int) -> Tool:
        properties = {f"field_{i}": {"type": "string", "description": self._words(120)} for i in range(6)}
        function = {
            "name": f"tool_{place}",
            "description": self._words(700),
            "parameters": {"type": "object", "properties": properties, "required": ["field_0"]},
        }
        return Tool(f"tool_{place}", {"type": "function", "function": function})
