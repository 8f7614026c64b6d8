"""A region's process killed, or frozen, under traffic from an edge: no request without a visible token is lost."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

import httpx
import openai
import pytest

from tests.integration.region_gateways import ASK, PEER_KEY, region
from tests.ports import free_port

TEXT = "one two three four five six seven eight"
LEFT_OUT_WITHIN_S = 2.0


@contextlib.asynccontextmanager
async def child_region(frontend, name, every_s):
    """A gateway with an engine, in a process of its own; yields it and its URL."""
    ids = [*frontend._encoder.encode([TEXT], at_start=False)[0].tolist(), frontend.stop_ids[0]]
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.region_program",
        name,
        str(port),
        stdin=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    process.stdin.write(json.dumps({"ids": ids, "every_s": every_s, "peer_key": PEER_KEY}).encode())
    process.stdin.close()
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(30), httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await http.get(f"{url}/livez")).status_code == 200:
                        break
                await asyncio.sleep(0.05)
        yield process, url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def ask(client):
    """(text seen, error or None, seconds to the first text)"""
    began_s, first_s, text = time.monotonic(), None, ""
    try:
        async for chunk in await client.chat.completions.create(**ASK, stream=True):
            text += chunk.choices[0].delta.content or ""
            if text and first_s is None:
                first_s = time.monotonic() - began_s
    except openai.APIError as e:
        return text, e, first_s
    return text, None, first_s


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_region_that_dies_under_traffic_is_left_out_within_2_s_and_loses_nothing(smollm2, how):
    async with (
        child_region(smollm2, "a", 0.02) as (process, a_url),
        child_region(smollm2, "b", 0.02) as (_, b_url),
        region("edge", smollm2, peers={"a": a_url, "b": b_url}) as edge,
        edge.client() as client,
    ):
        await edge.knows("a", "b")
        done, stop = [], asyncio.Event()

        async def traffic():
            while not stop.is_set():
                done.append(await ask(client))

        clients = [asyncio.create_task(traffic()) for _ in range(6)]
        async with asyncio.timeout(20):
            while len(done) < 12 or edge.peers["a"].in_flight == 0:
                await asyncio.sleep(0.001)
        before = len(done)
        killed_s = time.monotonic()
        process.send_signal(how)
        await edge.knows("a", up=False, within_s=LEFT_OUT_WITHIN_S)
        left_out_s = time.monotonic() - killed_s
        await asyncio.sleep(3.5)
        stop.set()
        await asyncio.gather(*clients)

        lost = [error for text, error, _ in done if error is not None and not text]
        cut = [text for text, error, _ in done if error is not None]
        waits_s = [first_s for _, _, first_s in done[before:] if first_s is not None]
        print(
            f"{how.name}: left out in {left_out_s:.2f} s; {len(done)} requests, {len(cut)} cut after a token,"
        )
        print(
            f"the longest wait for a token {max(waits_s):.2f} s; attempts {sum(s.attempts for s in edge.settlements)}"
        )
        assert lost == []
        assert len(cut) <= 6, "at most what was running there"
        assert all(text == TEXT for text, error, _ in done if error is None)
        assert all(TEXT.startswith(text) for text in cut)
        assert len(done) > before + 6
        assert max(waits_s) < 3.5
        assert sum(s.attempts for s in edge.settlements) <= 1.1 * len(edge.settlements) + 10
        await edge.check_nothing_is_left()


@pytest.mark.slow
async def test_a_region_that_thaws_is_used_again(smollm2):
    async with (
        child_region(smollm2, "a", 0.0) as (process, url),
        region("edge", smollm2, peers={"a": url}) as edge,
        edge.client() as client,
    ):
        await edge.knows("a")
        process.send_signal(signal.SIGSTOP)
        await edge.knows("a", up=False, within_s=LEFT_OUT_WITHIN_S)
        # It is the only one and may only be slow: it is asked, and given up.
        text, error, _ = await ask(client)
        assert (text, type(error).__name__) in {("", "APIError"), ("", "InternalServerError")}
        process.send_signal(signal.SIGCONT)
        await edge.knows("a", within_s=3)
        text, error, _ = await ask(client)
        assert (text, error) == (TEXT, None)
