"""The client: HTTP/1.1 over plain asyncio streams, kept open, one request after another. It costs little by design."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    first_s: float
    """From the first byte sent to the first byte of the streamed body."""
    total_s: float
    frames: int
    """Server-sent events, `[DONE]` not counted."""
    chunks_s: tuple[float, ...]
    """When each chunk of the body was read, from the first byte sent."""


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    path: str
    key: str = ""
    host: str = "127.0.0.1"


class Connection:
    """One kept connection, opened again when the server closed it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes) -> Answer:
        target = self._target
        if self._streams is None:
            self._streams = await asyncio.open_connection(target.host, target.port)
        reader, writer = self._streams
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        began_s = time.perf_counter()
        writer.write(head + body)
        answer_head = await reader.readuntil(b"\r\n\r\n")
        status = answer_head.split(b" ", 2)[1]
        if status != b"200":
            raise RuntimeError(f"{target.path} answered {status.decode()}: {await reader.read(500)!r}")
        chunks_s: list[float] = []
        frames = 0
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size + 2)
            chunks_s.append(time.perf_counter() - began_s)
            frames += data.count(b"data: {")
            if b'"error"' in data:
                raise RuntimeError(f"{target.path} failed in its stream: {data[:500]!r}")
        await reader.readline()
        if b"connection: close" in answer_head.lower():
            self.close()
        return Answer(chunks_s[0], time.perf_counter() - began_s, frames, tuple(chunks_s))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def in_turn(target: Target, bodies: list[bytes]) -> list[Answer]:
    """One request after another on one connection."""
    connection = Connection(target)
    try:
        return [await connection.ask(body) for body in bodies]
    finally:
        connection.close()


async def at_once(target: Target, clients: int, each: int, body: Callable[[], bytes]) -> list[Answer]:
    """`clients` connections, `each` requests on every one."""
    done = await asyncio.gather(*(in_turn(target, [body() for _ in range(each)]) for _ in range(clients)))
    return [answer for answers in done for answer in answers]


async def for_a_while(
    target: Target, clients: int, seconds: float, body: Callable[[], bytes]
) -> tuple[list[Answer], float]:
    """`clients` connections that ask again and again; the answers, and the seconds until the last of them."""
    began_s = time.perf_counter()
    answers: list[Answer] = []

    async def one() -> None:
        connection = Connection(target)
        try:
            while time.perf_counter() - began_s < seconds:
                answers.append(await connection.ask(body()))
        finally:
            connection.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return answers, time.perf_counter() - began_s
