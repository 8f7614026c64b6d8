"""A region of its own process: `python -m tests.integration.region_program NAME PORT`, with JSON on standard input.

The JSON holds the peer key and what its engine says: `ids`, `every_s`.
"""

import json
import sys

import uvicorn

from dayzero.gateway.app import create_app
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.tenancy import KeyRing, Role, StoredKey
from dayzero.testing.local_dispatcher import LocalDispatcher
from dayzero.testing.scripted_engine import ScriptedEngine, say
from tests.integration.region_gateways import make_gateway


class PeersOnly:
    """In the place of a frontend: a region that serves peers only renders and decodes nothing."""

    oddities = frozenset()

    def cache_size(self):
        return None


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    told = json.loads(sys.stdin.read())
    engine = ScriptedEngine(say(told["ids"], every_s=told["every_s"]))
    gateway = make_gateway(
        name,
        PeersOnly(),
        peers=Peers(()),
        local=LocalDispatcher({"r1": engine}),
        policy=RegionsPolicy(),
        settlements=[],
        keys=KeyRing([StoredKey.of(told["peer_key"], "regions", Role.PEER)]),
    )
    uvicorn.run(create_app(gateway), host="127.0.0.1", port=port, log_level="critical")


if __name__ == "__main__":
    main()
