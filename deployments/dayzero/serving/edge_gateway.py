"""A gateway alone: the same ASGI app as in a region, with no replicas of its own; every request goes to a region.

- It imports no ray: an edge is a small machine.
- Regions that run on this machine are asked where they run, the others where the fleet file says.
- It says once, after the first probes, which regions answer.
- Its first signal to end lets running answers finish (`policy.drain_timeout_s`); a second one ends it at once.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from dayzero.config import Fleet, Model
from dayzero.gateway import garbage
from dayzero.gateway.app import create_app
from dayzero.gateway.regions.dispatcher import RegionalDispatcher
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.service import Gateway, ServedModel
from dayzero.serving import gateway_parts
from dayzero.serving.errors import EdgeSetupError
from dayzero.serving.local import model_files
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.peer_book import PeerBook
from dayzero.serving.region_peers import peers_of, regions_policy
from dayzero.telemetry import setup
from dayzero.tenancy import load_keys, load_or_make_secret
from dayzero.tenancy.private_file import read_key

POOL = "edge"
"""What stands in metrics where a region has pools."""


@dataclass(frozen=True, slots=True)
class EdgeFiles:
    """What an edge shares with the regions, and where it lies. `key_digests`: the clients' keys."""

    key_digests: Path
    secret: Path
    peer_key: Path
    models: Path
    peers: Path | None = None
    """Where the regions run (`peer_book`)."""

    @classmethod
    def of(cls, run: FleetFolder) -> "EdgeFiles":
        """Those of the regions that run on this machine."""
        return cls(run.key_digests, run.secret, run.peer_key, run.models, run.peers)

    def read_peer_key(self) -> str:
        """Raises EdgeSetupError or TenancySetupError."""
        if not self.peer_key.exists():
            raise EdgeSetupError(
                f"{self.peer_key} is missing: the key that regions take from one another's gateways. `dayzero up` "
                "makes it; on another machine, copy it from a region, with the key digests and the secret."
            )
        return read_key(self.peer_key)


def build(fleet: Fleet, name: str, files: EdgeFiles, folders: Mapping[str, Path | None]) -> Gateway:
    """`name`: what the edge is called; no region's name. `folders`: each model's files. Raises EdgeSetupError."""
    if name in {region.name for region in fleet.infrastructure.regions}:
        raise EdgeSetupError(f"'{name}' is a region of this fleet; an edge needs a name of its own.")
    rules, policy = regions_policy(fleet), fleet.policy
    peers = peers_of(PeerBook(fleet, name, files.peers), files.read_peer_key(), rules)
    return Gateway(
        region=name,
        models=[_served(model, folders[model.name], name, peers, fleet) for model in fleet.serving.models],
        keys=load_keys(files.key_digests),
        secret=load_or_make_secret(files.secret),
        limits=gateway_parts.limits(fleet),
        retry_policy=gateway_parts.retry_policy(fleet),
        canary=gateway_parts.canary_policy(fleet),
        tracing=setup("dayzero-edge"),
        peers=peers,
        residency=policy.regions.residency,
        heartbeat_s=rules.heartbeat_s,
    )


def ensure_files(
    fleet: Fleet, models: Path, say: Callable[[str], None], *, mark: str
) -> dict[str, Path | None]:
    """Each model's files, by name: what a frontend needs, without weights. Raises StartError."""
    names = [region.name for region in fleet.infrastructure.regions]
    found: dict[str, Path | None] = {}
    for name in names:
        found |= model_files.folders(fleet, name, models)
    for folder in model_files.needed(fleet, names, models):
        model_files.ensure(model_files.TOKENIZER, folder, say, mark=mark)
    return found


def serve(
    gateway: Gateway,
    host: str,
    port: int,
    *,
    drain_timeout_s: float,
    first_probes_s: float,
    say: Callable[[str], None],
) -> None:
    """Until a signal ends it. `first_probes_s`: how long regions may take to answer the first probe."""
    config = uvicorn.Config(
        create_app(gateway),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
    )
    garbage.settle()
    _Server(config, gateway, first_probes_s, say).run()


def answering(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of a gateway's lines on its regions: which may be asked and which may not, for people."""
    return [
        f"{line['region']} at {line['url']} "
        + (f"answers{_but(line)}" if line["up"] else f"does not answer: {line['why']}")
        for line in lines
    ]


def _but(line: Mapping[str, Any]) -> str:
    """Which models are not asked for there though it answers."""
    return "".join(
        f", but is not asked: {model['why']}" for model in line.get("models") or () if model.get("not_sent")
    )


class _Server(uvicorn.Server):
    """Says what its regions do at its start, and when it begins to end."""

    def __init__(
        self, config: uvicorn.Config, gateway: Gateway, first_probes_s: float, say: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._gateway, self._first_probes_s, self._say = gateway, first_probes_s, say
        self._report: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._report = asyncio.create_task(self._tell())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._report is not None:
            self._report.cancel()
        running, within_s = len(self.server_state.tasks), self.config.timeout_graceful_shutdown
        if running:
            self._say(f"Draining: {running} running, up to {within_s} s. Ctrl-C again ends it at once.")
        else:
            self._say("Draining: nothing runs.")
        await super().shutdown(sockets)

    async def _tell(self) -> None:
        until_s = time.monotonic() + self._first_probes_s
        while True:
            lines = self._regions()
            if all(line["up"] for line in lines) or time.monotonic() > until_s:
                break
            await asyncio.sleep(0.05)
        for words in answering(lines):
            self._say(words)

    def _regions(self) -> list[dict[str, Any]]:
        return list(self._gateway.status()["regions"])


def _served(model: Model, folder: Path | None, name: str, peers: Peers, fleet: Fleet) -> ServedModel:
    dispatcher = RegionalDispatcher(
        None, peers, model=model.name, home=name, policy=regions_policy(fleet).spill
    )
    return gateway_parts.served(model, POOL, folder, dispatcher)
