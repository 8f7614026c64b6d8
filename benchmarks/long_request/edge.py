"""The measured process: a gateway that renders, chains, places and sends on, with a probe of its event loop.

Each stage of a request is timed where the product calls it, and so is every moment at which the loop came late. Both
are told at `/measured`, and forgotten there.
"""

import asyncio
import functools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from dayzero.api.contracts import MOONSHOT
from dayzero.frontend import kimi_k3
from dayzero.gateway import chat, garbage
from dayzero.gateway import generation as generating
from dayzero.gateway.app import create_app
from dayzero.gateway.http import JSON_TYPE, send_bytes
from dayzero.gateway.regions import peer_dispatch
from dayzero.gateway.regions.dispatcher import RegionalDispatcher
from dayzero.gateway.regions.peer import PeerAddress
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.tenancy import KeyRing, StoredKey
from long_request.bodies import MODEL
from long_request.region import NAME, gateway, served

# ruff: noqa: SLF001 - stages are timed where the product has them

UNIT_TOKENS = 128
"""Of Kimi K3's chains: what a region's digest would tell."""
PROBE_S = 0.005
_account = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
"""Of the thread that imports this, which runs the event loop."""


class Measured:
    """What was seen since it was last asked."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[float, float]] = {}
        self.late: list[tuple[float, float, float]] = []

    def stage(self, name: str, began_s: float) -> None:
        self.stages[name] = (began_s, time.monotonic())

    def take(self) -> dict[str, Any]:
        told = {"stages": self.stages, "late": sorted(self.late, reverse=True)[:20], "probes": len(self.late)}
        self.stages, self.late = {}, []
        return told

    def timed(self, name: str, work: Any) -> Any:
        @functools.wraps(work)
        async def one(*arguments: Any, **named: Any) -> Any:
            began_s = time.monotonic()
            try:
                return await work(*arguments, **named)
            finally:
                self.stage(name, began_s)

        return one

    async def probe(self) -> None:
        """How late the loop wakes whoever sleeps, less what its thread waited for a core of the machine."""
        while True:
            due_s, waited_s = time.monotonic() + PROBE_S, waited_for_a_core_s()
            await asyncio.sleep(PROBE_S)
            late_s = time.monotonic() - due_s
            self.late.append((max(late_s - (waited_for_a_core_s() - waited_s), 0.0), late_s, due_s))


def waited_for_a_core_s() -> float:
    """By this thread, ready to run, since it began: the second figure of Linux's account."""
    return int(_account.read_text().split()[1]) / 1e9


class Chained(RegionalDispatcher):
    """As with a region that tells which prefixes it has: prompts are hashed."""

    def unit_sizes(self) -> frozenset[int]:
        return frozenset({UNIT_TOKENS})


def main() -> None:
    told = json.loads(sys.stdin.readline())
    vocabulary = Path(told["vocabulary"]) if told["vocabulary"] else None
    policy = RegionsPolicy()
    peers = Peers.at([PeerAddress(NAME, told["region_url"])], told["peer_key"], policy)
    dispatcher = Chained(None, peers, model=MODEL, home="edge", policy=policy.spill)
    frontend = kimi_k3.load(vocabulary=vocabulary)
    model = served(frontend, dispatcher, told["max_model_tokens"], MOONSHOT)
    made = gateway("edge", model, KeyRing([StoredKey.of(told["key"], "acme")]), peers)
    measured = Measured()
    _time_stages(made, measured)
    app, probes = create_app(made), []

    async def with_measures(scope: Any, receive: Any, send: Any) -> None:
        if not probes:
            probes.append(asyncio.create_task(measured.probe()))
        if scope["type"] == "http" and scope["path"] == "/measured":
            await send_bytes(send, 200, json.dumps(measured.take()).encode(), [JSON_TYPE])
            return
        await app(scope, receive, send)

    garbage.settle()  # as `dayzero gateway` does
    uvicorn.run(with_measures, host="127.0.0.1", port=told["port"], log_level="critical")


def _time_stages(made: Any, measured: Measured) -> None:
    """In this process the product's own functions are wrapped; nothing else about them changes."""
    chat.read_body = measured.timed("read body", chat.read_body)
    chat.ChatCompletions._parse = measured.timed("parse", chat.ChatCompletions._parse)  # type: ignore[method-assign]
    made.render = measured.timed("render", made.render)
    made._chained = measured.timed("chain", made._chained)
    peer_dispatch._encoded = measured.timed("encode for the region", peer_dispatch._encoded)
    place = generating.placed

    def placed(*arguments: Any) -> Any:
        began_s = time.monotonic()
        try:
            return place(*arguments)
        finally:
            measured.stage("place", began_s)

    generating.placed = placed


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
