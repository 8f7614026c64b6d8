"""A region of its own process: a gateway before a simulated Kimi K3, as an edge asks it. Settings come on standard input."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from dayzero.api.contracts import MOONSHOT
from dayzero.config import Frontend
from dayzero.engine.simulated_profile import load_profile
from dayzero.gateway.app import create_app
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.retry import RetryPolicy
from dayzero.gateway.service import CanaryPolicy, Gateway, GatewayLimits, ServedModel
from dayzero.serving.engines.sim import SimulatedEngine
from dayzero.serving.engines.voice import voice_of
from dayzero.serving.frontends import load_frontend
from dayzero.tenancy import KeyRing, Role, ServerSecret, StoredKey
from dayzero.testing.local_dispatcher import LocalDispatcher
from long_request.bodies import MODEL

NAME = "region"
PROFILE = "kimi-k3-gb300-tp8"


def served(frontend: Any, dispatcher: Any, max_model_tokens: int, contract: Any) -> ServedModel:
    return ServedModel(
        name=MODEL,
        aliases=(),
        pool="long",
        frontend=frontend,
        dispatcher=dispatcher,
        max_model_tokens=max_model_tokens,
        default_max_tokens=1024,
        created_s=0,
        contract=contract,
    )


def gateway(name: str, model: ServedModel, keys: KeyRing, peers: Peers) -> Gateway:
    return Gateway(
        region=name,
        models=[model],
        keys=keys,
        secret=ServerSecret(b"s" * 32),
        limits=GatewayLimits(),
        retry_policy=RetryPolicy(),
        canary=CanaryPolicy(enabled=False),
        peers=peers,
    )


def main() -> None:
    told = json.loads(sys.stdin.readline())
    frontend = Frontend(
        kind="kimi_k3", options={"vocabulary": told["vocabulary"]} if told["vocabulary"] else {}
    )
    profile = load_profile(PROFILE)
    limits = dataclasses.replace(profile.limits, max_model_tokens=told["max_model_tokens"])
    engine = SimulatedEngine(
        msgspec.structs.replace(profile, limits=limits, model=MODEL),
        voice_of(frontend, None, None),
        time_scale=1 / told["time_scale"],
    )
    rendering = load_frontend(frontend, None)
    model = served(rendering, LocalDispatcher({"replica": engine}), told["max_model_tokens"], MOONSHOT)
    keys = KeyRing([StoredKey.of(told["peer_key"], "regions", Role.PEER)])
    made = gateway(NAME, model, keys, Peers(()))
    start = made.start

    async def start_both() -> None:
        await engine.start()
        await start()

    made.start = start_both  # type: ignore[method-assign]
    uvicorn.run(create_app(made), host="127.0.0.1", port=told["port"], log_level="critical")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
