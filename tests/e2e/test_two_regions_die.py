"""A region's whole cluster is killed while the other region's gateway, and an edge, send it work."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import uuid

import httpx
import pytest

from tests.e2e.regions import MODEL, ROOT, frames, wait_until
from tests.engine.vllm_support import needs_vllm
from tests.ports import free_port

pytestmark = [*needs_vllm, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS = 24


@pytest.fixture
def edge(both_real):
    """A gateway alone, before both regions: its URL."""
    port = free_port()
    east = both_real["us-east"]
    fleet = fleet_at(both_real, port)
    process = subprocess.Popen(
        [sys.executable, "-m", "dayzero.cli.main", "gateway", str(fleet), "--port", str(port)],
        env=east.environment,
        cwd=ROOT,
    )
    try:
        url = f"http://127.0.0.1:{port}"

        def ready():
            try:
                return httpx.get(f"{url}/readyz").status_code == 200
            except httpx.HTTPError:
                assert process.poll() is None, "the edge ended"
                return False

        wait_until(ready, 60)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def fleet_at(both, port):
    """The local fleet with the regions where they listen now."""
    import yaml

    fleet = yaml.safe_load((ROOT / "deployments" / "local.yaml").read_text())
    for region in fleet["infrastructure"]["regions"]:
        region["http"]["port"] = int(both[region["name"]].url.rsplit(":", 1)[1])
    path = both["us-east"].folder.fleet.path / f"fleet-{port}.yaml"
    path.write_text(yaml.safe_dump(fleet))
    return path


class Crowd:
    """Clients that stream answers one after another; each answer is whole, ended by an error after text, or lost."""

    def __init__(self, url, key):
        self._url, self._key = url, key
        self.whole = self.cut = 0
        self.lost = []

    async def run(self, seconds):
        ends = time.monotonic() + seconds
        async with httpx.AsyncClient(timeout=120) as client:
            await asyncio.gather(*(self._one(client, ends) for _ in range(CLIENTS)))

    async def _one(self, client, ends):
        while time.monotonic() < ends:
            words = f"{uuid.uuid4()} " + "apples and pears and " * 60
            body = {"model": MODEL, "messages": [{"role": "user", "content": words}], "stream": True}
            body |= {"max_tokens": 16, "ignore_eos": True}
            try:
                answer = await client.post(
                    f"{self._url}/v1/chat/completions",
                    json=body,
                    headers={"authorization": f"Bearer {self._key}"},
                )
            except httpx.HTTPError as error:
                self.lost.append(repr(error))
                continue
            if answer.status_code != 200:
                self.lost.append(f"{answer.status_code} {answer.text[:300]}")
                continue
            events = [json.loads(frame) for frame in frames(answer.text) if frame != "[DONE]"]
            text = "".join(
                choice["delta"].get("content") or ""
                for event in events
                for choice in event.get("choices", ())
            )
            failed = [event for event in events if "error" in event]
            if not failed and events and events[-1]["choices"][0]["finish_reason"]:
                self.whole += 1
            elif text:
                self.cut += 1
            else:
                self.lost.append(answer.text[-300:])


def peer_of(region):
    (peer,) = region.status()["regions"]
    return peer


async def test_no_request_without_a_visible_token_is_lost_when_a_region_dies(both_real, edge, figure):
    east, west = both_real["us-east"], both_real["eu-west"]
    wait_until(lambda: peer_of(east)["up"], 60, east.status)
    from_east, from_edge = Crowd(east.url, east.key), Crowd(edge, east.key)
    running = [asyncio.create_task(crowd.run(20)) for crowd in (from_east, from_edge)]
    sent = 0
    for _ in range(200):  # us-east is loaded by now: some of its work has gone to eu-west
        await asyncio.sleep(0.05)
        sent = (await asyncio.to_thread(peer_of, east))["in_flight"]
        if sent >= 2:
            break
    assert sent >= 2, "nothing was sent to eu-west"
    killed_s = time.monotonic()
    for process in west.cluster():
        process.send(signal.SIGKILL)
    left_out_s = None
    while left_out_s is None and time.monotonic() - killed_s < 10:
        if not (await asyncio.to_thread(peer_of, east))["up"]:
            left_out_s = time.monotonic() - killed_s
        await asyncio.sleep(0.05)
    await asyncio.gather(*running)
    assert left_out_s is not None
    figure(
        f"left out {left_out_s:.2f} s after; {sent} of us-east's requests were there. From us-east: {from_east.whole} "
        f"whole, {from_east.cut} cut after text; from the edge: {from_edge.whole} whole, {from_edge.cut} cut"
    )
    assert from_east.lost == from_edge.lost == []
    assert from_east.whole > CLIENTS
    assert from_edge.whole > CLIENTS
    shown = east.command("status")
    assert "to eu-west: left out" in shown.stdout
