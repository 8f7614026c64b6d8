"""Which call a tool's result answers, in which order a run of results is shown, and under which names (KIMI_K3 section 3).

- A run whose ids all match calls of the last assistant message is put into the order of the calls and takes their
  names. Of calls with the same id the first counts; results of the same call keep their order.
- In any other run no id counts: the order stays, and a result is named by its message, else by the call at its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dayzero.frontend.conversation import Message, ToolCall
from dayzero.frontend.errors import FrontendError


@dataclass(frozen=True, slots=True)
class NamedResult:
    """`at`: the message's place in the conversation. `index`: as the prompt counts it."""

    at: int
    message: Message
    tool: str
    index: int


def named_results(
    run: Sequence[tuple[int, Message]], calls: Sequence[ToolCall], shown: int
) -> list[NamedResult]:
    """`run`: neighbouring results with their places. `calls`: of the last assistant message. `shown`: results since it.

    Raises FrontendError naming the message that has neither a call nor a name.
    """
    places: dict[str, int] = {}
    for place, call in enumerate(calls):
        places.setdefault(call.id, place)
    matched = [
        (places[message.tool_call_id], at, message)
        for at, message in run
        if message.tool_call_id is not None and message.tool_call_id in places
    ]
    if len(matched) == len(run):
        matched.sort(key=lambda one: one[0])
        return [
            NamedResult(at, message, calls[place].name, index)
            for index, (place, at, message) in enumerate(matched, shown + 1)
        ]
    return [
        NamedResult(at, message, _name(at, message, calls, index), index)
        for index, (at, message) in enumerate(run, shown + 1)
    ]


def _name(at: int, message: Message, calls: Sequence[ToolCall], index: int) -> str:
    if message.name:
        return message.name
    if index <= len(calls):
        return calls[index - 1].name
    raise FrontendError(
        f"`messages[{at}]` answers no call of the assistant message before it; send that call's id, or a `name`",
        param=f"messages[{at}].tool_call_id",
    )
