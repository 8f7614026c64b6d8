"""`dayzero prompt`: what a request body becomes, token by token, on the code path of the gateway.

A body is decoded, held to its model's contract, made into a conversation and rendered by the very functions that serve
requests. What a gateway adds are limits on context and body, which are the fleet file's.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from dayzero.api.body import decode
from dayzero.api.chat.conversation import conversation, parameters, sampling
from dayzero.api.chat.request import ChatCompletionRequest, decoder_of, mendable
from dayzero.cli.layout import counted
from dayzero.cli.model_frontend import NamedFrontend, named_frontend
from dayzero.cli.reading import InputError, read
from dayzero.errors import DayzeroError, InvalidRequestError
from dayzero.frontend.protocol import Prompt, PromptSegment

Dialect = Literal["chat"]


class ChatBody(ChatCompletionRequest, frozen=True, kw_only=True):
    """A chat request; `model` may be left out, as the command names the model."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] = ""


_chat_body = decoder_of(ChatBody)


def show(file: str, *, dialect: Dialect, model: str, vocabulary: Path | None, as_json: bool) -> int:
    body = read(file, f"a body of the {dialect} dialect")
    named = named_frontend(model, vocabulary)
    prompt, segments = prompt_of(body, named)
    if as_json:
        print(json.dumps(record(prompt, segments, named), ensure_ascii=False))
    else:
        for line in picture(prompt, segments, named, shutil.get_terminal_size((100, 24)).columns):
            print(line)
    return 0


def prompt_of(body: bytes, named: NamedFrontend) -> tuple[Prompt, list[PromptSegment]]:
    """Raises InputError, with the words that a client would get."""
    try:
        request = decode(body, _chat_body, mendable)
        asked = parameters(request)
        talk = conversation(request, named.contract)
        prompt = named.frontend.render(talk, scope="")
        sampling(request, max_tokens=asked.max_tokens or 1_048_576, stop_ids=prompt.stop_ids)
    except InvalidRequestError as error:
        where = f" (at `{error.param}`)" if error.param and f"`{error.param}`" not in error.message else ""
        raise InputError(
            f"A gateway refuses this request ({error.status}): {error.message}{where}", code=error.code
        ) from None
    segments = named.frontend.segments(talk)
    if [token for segment in segments for token in segment.ids] != np.frombuffer(prompt.ids, "<u4").tolist():
        raise DayzeroError(
            "The segments are not the prompt: a fault of dayzero; report it with this request."
        )
    return prompt, segments


def record(prompt: Prompt, segments: list[PromptSegment], named: NamedFrontend) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "prompt_token_ids": np.frombuffer(prompt.ids, "<u4").tolist(),
        "n": prompt.tokens,
        "text": "".join(segment.text for segment in segments),
        "segments": [{"kind": one.kind, "text": one.text, "ids": list(one.ids)} for one in segments],
        "vocabulary": named.vocabulary,
    }


def picture(
    prompt: Prompt, segments: list[PromptSegment], named: NamedFrontend, columns: int
) -> Iterator[str]:
    """For a person: a line a segment, with the place of its first id; texts in quotes, long ones cut."""
    yield (
        f"{named.model}: {counted(prompt.tokens, 'token')}, {prompt.billed_tokens:,} in usage;"
        f" the answer begins in {prompt.start.value}"
    )
    yield f"vocabulary {named.vocabulary['source']} (sha256 {named.vocabulary['sha256'][:12]}…)"
    yield ""
    yield f"{'at':>9} {'ids':>7}  segment"
    at = 0
    for segment in segments:
        length = len(segment.ids)
        shown = segment.text if segment.kind == "control" else json.dumps(segment.text, ensure_ascii=False)
        yield f"{at:>9,} {length:>7,}  {_cut(shown, max(columns - 20, 20))}"
        at += length


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    rest = f"… ({len(text):,} characters)"
    return text[: max(width - len(rest), 1)] + rest
