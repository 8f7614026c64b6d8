"""What dayzero is compared with: a Starlette app that reads a request and streams frames like dayzero's.

It parses the body and sends one frame a token, each a message of its own. It does nothing else: no key, no template, no
tokens, no engine. As a program, `python -m overhead.plain PORT`, it is the floor: uvicorn and this app.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

PACED_MODEL = "paced"
PACE_S = 0.0045
"""Between two tokens of the paced model, as dayzero's simulated one takes for a step."""

_HEAD = b'data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1700000000,"model":"m"'
_FRAME = b',"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}\n\n'
ROLE = _HEAD + _FRAME % (b'{"role":"assistant","content":""}', b"null")
TOKEN = _HEAD + _FRAME % (b'{"content":" harbour"}', b"null")
LAST = _HEAD + _FRAME % (b"{}", b'"length"') + b"data: [DONE]\n\n"

Source = Callable[[bytes, int, float], AsyncIterator[bytes]]
"""(body, tokens, seconds between them) → one item a token."""


class Body(msgspec.Struct):
    model: str
    max_tokens: int
    messages: list[dict[str, str]]


_decode = msgspec.json.Decoder(Body).decode


async def in_process(body: bytes, tokens: int, pace_s: float) -> AsyncIterator[bytes]:  # noqa: ARG001 a Source
    for _ in range(tokens):
        yield b"x"
        await asyncio.sleep(pace_s)


def app(source: Source = in_process) -> Starlette:
    async def stream(body: bytes) -> AsyncIterator[bytes]:
        asked = _decode(body)
        pace_s = PACE_S if asked.model == PACED_MODEL else 0.0
        before = ROLE
        async for _ in source(body, asked.max_tokens, pace_s):
            yield before + TOKEN
            before = b""
        yield LAST

    async def completions(request: Request) -> StreamingResponse:
        return StreamingResponse(stream(await request.body()), media_type="text/event-stream")

    async def ready(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ready"})

    return Starlette(
        routes=[Route("/v1/chat/completions", completions, methods=["POST"]), Route("/readyz", ready)]
    )


if __name__ == "__main__":
    uvicorn.run(app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
