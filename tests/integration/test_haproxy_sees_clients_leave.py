"""A real HAProxy with Ray Serve's own configuration, mended, in front of a server that never answers."""

import asyncio
import contextlib

import pytest

from tests.integration.haproxies import connect, haproxy, server

BODY = b'{"model": "m"}'
HEADERS = b"POST /v1/x HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % len(BODY)


class SilentServer:
    def __init__(self):
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader, writer):
        await reader.readexactly(len(BODY))
        self.asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.left.set()


@pytest.mark.parametrize("packets", [1, 2])
async def test_a_client_that_leaves_is_seen_while_it_waits_for_its_answer(tmp_path, packets):
    silent = SilentServer()
    async with server(silent) as port, haproxy(tmp_path, port) as proxy:
        _, writer = await connect(proxy.front)
        if packets == 1:
            writer.write(HEADERS + BODY)
        else:  # as httpx and the openai client send it
            writer.write(HEADERS)
            await asyncio.sleep(0.05)
            writer.write(BODY)
        async with asyncio.timeout(20):
            await silent.asked.wait()
        writer.close()
        async with asyncio.timeout(2):
            assert await silent.left.wait()
