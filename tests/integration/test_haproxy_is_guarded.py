"""What HAProxy does with Ray Serve's configuration once it is mended: silent clients, inner listeners, its own errors."""

import asyncio
import json

import psutil
import pytest

from tests.integration.haproxies import ANSWER, GET, answer_ok, connect, haproxy, server
from tests.ports import free_port


async def test_silent_clients_do_not_take_the_api_down(tmp_path):
    limits = {"headers_timeout_s": 1, "maxconn": 100}
    async with server(answer_ok) as port, haproxy(tmp_path, port, **limits) as proxy:
        silent = [await connect(proxy.front) for _ in range(300)]
        for _, writer in silent[::2]:
            writer.write(GET[:20])
        assert (await proxy.answer())[0] == 200  # after three lots of a hundred had their second
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no"])
async def test_an_answer_may_be_silent_for_longer_than_a_client_that_owes_something(tmp_path, said):
    async def slow(reader, writer):
        writer.write(said)
        await asyncio.sleep(4)
        writer.write(ANSWER[len(said) :])

    async with server(slow) as port, haproxy(tmp_path, port, timeout_client_s=1) as proxy:
        status, _, body = await proxy.answer()
    assert (status, body) == (200, b"ok")


async def test_a_client_that_owes_a_body_is_let_go(tmp_path):
    async with server(answer_ok) as port, haproxy(tmp_path, port, timeout_client_s=1) as proxy:
        reader, writer = await connect(proxy.front)
        writer.write(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n")
        async with asyncio.timeout(20):
            await reader.read()
        assert reader.at_eof()
        writer.close()


async def test_only_loopback_is_listened_on_and_the_process_is_the_one_that_ray_knows(tmp_path):
    async with haproxy(tmp_path, None) as proxy:
        process = psutil.Process(proxy.pid)
        listening = [it.laddr for it in process.net_connections("tcp") if it.status == psutil.CONN_LISTEN]
        assert process.name() == "haproxy"
        assert str(proxy.config) in process.cmdline()
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == {proxy.front, *proxy.inner}


async def test_while_no_application_is_known_every_path_says_come_back(tmp_path):
    async with haproxy(tmp_path, None) as proxy:
        status, head, body = await proxy.answer()
    assert (status, "retry-after: 1" in head, "application/json" in head) == (503, True, True)
    assert json.loads(body)["error"]["code"] == "service_starting"


async def test_a_gateway_that_is_gone_is_an_error_in_openais_shape(tmp_path):
    async with haproxy(tmp_path, free_port()) as proxy:
        status, head, body = await proxy.answer()
    assert (status, "retry-after: 1" in head, "application/json" in head) == (503, True, True)
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}


async def test_an_answer_that_breaks_off_before_it_began_is_an_error_in_openais_shape(tmp_path):
    async def breaks(reader, writer):
        writer.close()

    async with server(breaks) as port, haproxy(tmp_path, port) as proxy:
        status, _, body = await proxy.answer()
    assert (status, json.loads(body)["error"]["code"]) == (502, "bad_gateway")
