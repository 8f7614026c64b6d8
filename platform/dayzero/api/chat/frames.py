"""Events → `chat.completion.chunk` frames or one `chat.completion` object. A fold with no I/O.

- A stream has a role frame first, one frame with `finish_reason`, the usage frame if asked for, then `[DONE]`;
  a stream that fails has one error frame in place of the finish, then `[DONE]`.
- Moonshot's form: `cached_tokens` stands at the top of usage too, and the frame with `finish_reason` carries usage, at
  its top and in its choice, asked for or not.
- Constant parts of a frame are encoded once per stream; a frame costs one JSON string.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dayzero.engine.types import TokenLogprob
from dayzero.errors import DayzeroError
from dayzero.frontend.events import (
    Answer,
    Content,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ToolArguments,
    ToolStart,
)
from dayzero.frontend.protocol import ModelFrontend

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Usage:
    """What the answer is billed as."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def wire(self, *, moonshot: bool = False) -> dict[str, Any]:
        top = {"cached_tokens": self.cached_tokens} if moonshot else {}
        return top | {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """What every frame of one answer repeats, and the form it has.

    `first_call`: the number, over the conversation, of the answer's first call. `moonshot_usage`: see the module.
    """

    id: str
    created_s: int
    model: str
    first_call: int = 0
    moonshot_usage: bool = False


def finish_reason(finished: Finished) -> str:
    """Our reasons in OpenAI's words. An aborted answer is reported as an error elsewhere, never here."""
    return {FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}.get(finished.reason, "stop")


def logprobs_wire(frontend: ModelFrontend, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}`."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        text, raw = frontend.token_text(token_id)
        # JSON has no -inf; OpenAI's own floor is -9999.
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(raw)}

    content = [
        {**token(entry.token_id, entry.logprob), "top_logprobs": [token(i, lp) for i, lp in entry.top]}
        for entry in logprobs
    ]
    return {"content": content, "refusal": None}


@dataclass(slots=True)
class ChunkWriter:
    """One stream's frames."""

    head: Head
    _before: bytes = field(init=False)
    _started: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        shared = _encode(
            {
                "id": self.head.id,
                "object": "chat.completion.chunk",
                "created": self.head.created_s,
                "model": self.head.model,
            }
        )
        self._before = b"data: " + shared[:-1]

    def events(
        self,
        events: Sequence[Event],
        logprobs: dict[str, Any] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """Frames for a batch of events; adjoining text becomes one frame. `logprobs` go with the first frame.

        `usage`: of the answer so far; only Moonshot's last frame shows it.
        """
        out: list[bytes] = []
        if not self._started:
            self._started = True
            out.append(self._choice({"role": "assistant", "content": ""}))
        for delta, reason in _deltas(events, self.head.first_call):
            last = usage if reason is not None and self.head.moonshot_usage else None
            out.append(self._choice(delta, reason, logprobs, last))
            logprobs = None
        return b"".join(out)

    def usage(self, usage: Usage) -> bytes:
        """The frame without choices that `include_usage` asks for."""
        return self._before + b',"choices":[],"usage":' + self._usage(usage) + b"}\n\n"

    def error(self, error: DayzeroError) -> bytes:
        return b"data: " + _encode(error.openai()) + b"\n\n"

    def _choice(
        self,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if usage is None:
            return self._before + b',"choices":[' + _encode(choice) + b"]}\n\n"
        shown = self._usage(usage)
        choice["usage"] = msgspec.Raw(shown)
        return self._before + b',"choices":[' + _encode(choice) + b'],"usage":' + shown + b"}\n\n"

    def _usage(self, usage: Usage) -> bytes:
        return _encode(usage.wire(moonshot=self.head.moonshot_usage))


def _deltas(events: Sequence[Event], first_call: int) -> list[tuple[dict[str, Any], str | None]]:
    """(delta, finish_reason) pairs; runs of text of one kind are joined."""
    out: list[tuple[dict[str, Any], str | None]] = []
    for event in events:
        match event:
            case Content(text=text):
                if out and "content" in out[-1][0]:
                    out[-1][0]["content"] += text
                else:
                    out.append(({"content": text}, None))
            case Reasoning(text=text):
                if out and "reasoning_content" in out[-1][0]:
                    out[-1][0]["reasoning_content"] += text
                else:
                    out.append(({"reasoning_content": text}, None))
            case ToolStart(index=index, name=name):
                call = {
                    "index": index,
                    "id": call_id(name, first_call + index),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
                out.append(({"tool_calls": [call]}, None))
            case ToolArguments(index=index, fragment=fragment):
                piece = {"index": index, "function": {"arguments": fragment}}
                out.append(({"tool_calls": [piece]}, None))
            case Finished():
                out.append(({}, finish_reason(event)))
    return out


def call_id(name: str, index: int) -> str:
    """Moonshot's form (KIMI_K3 section 5). `index`: over the whole conversation."""
    return f"functions.{name}:{index}"


def completion(head: Head, answer: Answer, usage: Usage, logprobs: dict[str, Any] | None) -> bytes:
    """The buffered answer: the fold of the streamed one, as a `chat.completion` object."""
    if answer.finished is None:
        raise ValueError("an answer without a Finished event is not complete")
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {
                "id": call_id(call.name, head.first_call + i),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(answer.tool_calls)
        ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(answer.finished),
    }
    return _encode(
        {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created_s,
            "model": head.model,
            "choices": [choice],
            "usage": usage.wire(moonshot=head.moonshot_usage),
        }
    )
