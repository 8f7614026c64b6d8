"""`dayzero decode`: what a model's token ids become, through the decoder that serves answers.

The result does not depend on how the ids are split. Nobody says here which tools were declared, so calls are not held
to any.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dayzero.api.chat.frames import finish_reason
from dayzero.cli.errors import UsageError
from dayzero.cli.layout import counted
from dayzero.cli.model_frontend import NamedFrontend, named_frontend
from dayzero.cli.reading import InputError, read
from dayzero.frontend.events import Answer, Event, FinishReason, fold
from dayzero.frontend.protocol import Channel, Prompt, TokenCounts


def show(
    file: str,
    *,
    model: str,
    start: Channel,
    split: int,
    finish: FinishReason | None,
    vocabulary: Path | None,
    as_json: bool,
) -> int:
    """`split`: ids in a push, 0 for all at once."""
    if split < 0:
        raise UsageError("--split takes a number of ids, 1 or more, or 0 for all at once.")
    body = read(file, "a JSON list of token ids")
    named = named_frontend(model, vocabulary)
    answer, counts = decoded(ids_of(body, named.vocabulary_tokens), named, start, split, finish)
    if as_json:
        print(json.dumps(record(answer), ensure_ascii=False))
    else:
        for line in picture(answer, counts):
            print(line)
    return 0


def ids_of(body: bytes, vocabulary_tokens: int) -> list[int]:
    """Raises InputError."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        where = (
            f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        )
        raise InputError(f"This is not JSON{where}. Send a JSON list of token ids: [1, 2, 3].") from None
    if not isinstance(value, list):
        raise InputError("This is JSON but no list. Send a JSON list of token ids: [1, 2, 3].")
    for place, token in enumerate(value):
        if type(token) is not int or not 0 <= token < vocabulary_tokens:
            raise InputError(
                f"Item {place} of the list is no token id. Those of this vocabulary are whole numbers from 0 to"
                f" {vocabulary_tokens - 1:,}; check the list, or name another vocabulary with --vocabulary."
            )
    return value


def decoded(
    ids: Sequence[int], named: NamedFrontend, start: Channel, split: int, finish: FinishReason | None
) -> tuple[Answer, TokenCounts]:
    """`finish` None: stop where the last id is the stop id, else length."""
    stop_ids = named.frontend.stop_ids
    decoder = named.frontend.decoder(Prompt(b"", start, billed_tokens=0, stop_ids=stop_ids))
    events: list[Event] = []
    step = split or len(ids) or 1
    for at in range(0, len(ids), step):
        events += decoder.push(ids[at : at + step])
    ended = bool(ids) and ids[-1] in stop_ids
    events += decoder.finish(finish or (FinishReason.STOP if ended else FinishReason.LENGTH))
    return fold(events), decoder.tokens


def record(answer: Answer) -> dict[str, Any]:
    """What `--json` prints."""
    assert answer.finished is not None
    return {
        "reasoning_content": answer.reasoning,
        "content": answer.content,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in answer.tool_calls],
        "finish_reason": finish_reason(answer.finished),
        "degraded": list(answer.finished.degraded),
    }


def picture(answer: Answer, counts: TokenCounts) -> Iterator[str]:
    """For a person: each part under a heading, and why it ended."""
    parts = [("reasoning_content", answer.reasoning), ("content", answer.content)]
    parts += [
        (f"tool call {i}: {call.name}" + ("" if call.complete else " (cut off)"), call.arguments)
        for i, call in enumerate(answer.tool_calls)
    ]
    for heading, text in parts:
        if text:
            yield f"── {_harmless(heading)}"
            yield _harmless(text)
            yield ""
    assert answer.finished is not None
    yield f"finish_reason: {finish_reason(answer.finished)}"
    yield (
        f"{counted(counts.total, 'id')}: {counts.reasoning:,} reasoning, {counts.content:,} content,"
        f" {counts.calls:,} calls, {counts.control:,} control, {counts.dropped:,} dropped"
    )
    for oddity in answer.finished.degraded:
        yield f"degraded: {oddity}"


def _harmless(text: str) -> str:
    """What a terminal would act upon, in words: a model's output may spell escape sequences."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
