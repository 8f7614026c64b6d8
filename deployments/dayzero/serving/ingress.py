"""The gateway as a Serve ingress: builds the core from the fleet and hands Serve its ASGI app.

What runs beside the requests is built here too: the follower of the region's feed, the writer of decisions, and the
probes of the peers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ray.serve.handle import DeploymentHandle

from dayzero.config import Fleet, Pool
from dayzero.gateway import garbage
from dayzero.gateway.app import create_app
from dayzero.gateway.feed_view import FeedView
from dayzero.gateway.middleware import RequestEnvelope
from dayzero.gateway.regions.dispatcher import RegionalDispatcher
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.gateway.regions.prefixes import ResidencyDigests
from dayzero.gateway.service import Gateway, ServedModel
from dayzero.router.feed import DecisionStore, Follower, Store
from dayzero.router.load import CostModel
from dayzero.router.residency import Residency
from dayzero.serving import gateway_parts
from dayzero.serving.dispatcher import ServeDispatcher
from dayzero.serving.frontends import vocabulary_digest
from dayzero.serving.peer_book import PeerBook
from dayzero.serving.region_peers import peers_of, regions_policy
from dayzero.telemetry import setup
from dayzero.tenancy import load_keys, load_or_make_secret
from dayzero.tenancy.private_file import read_key


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What an ingress is built from. `folders`: each model's files; key files and the secret are read in place."""

    fleet: Fleet
    region: str
    folders: Mapping[str, Path | None]
    keys_file: Path
    secret_file: Path
    peer_key_file: Path
    store_url: str = field(repr=False)
    """The region's Valkey; it may hold a password."""
    peers_file: Path | None = None
    """Where the others are, followed while it serves; None: where the fleet says."""


class GatewayIngress:
    """Bound into the Serve application by `dayzero.serving.app.build`; `serve.ingress()` calls the builder."""

    def __init__(self, spec: GatewaySpec, handles: Mapping[str, DeploymentHandle]) -> None:
        fleet = spec.fleet
        pools = fleet.pools(spec.region)
        rules = regions_policy(fleet)
        peers = _peers(spec, rules)
        residencies = {pool.model: Residency() for pool in pools}
        self._digests = ResidencyDigests(residencies)
        store = Store(spec.store_url)
        decisions = DecisionStore(store, region=spec.region)
        follower = Follower(store, region=spec.region, residency_of=residencies.get)
        self._gateway = Gateway(
            region=spec.region,
            models=[
                _served(spec, pool, _local(spec, pool, handles[pool.name], residencies[pool.model]), peers)
                for pool in pools
            ],
            keys=load_keys(spec.keys_file),
            secret=load_or_make_secret(spec.secret_file),
            limits=gateway_parts.limits(fleet),
            tracing=setup("dayzero-gateway"),
            retry_policy=gateway_parts.retry_policy(fleet),
            canary=gateway_parts.canary_policy(fleet),
            peers=peers,
            residency=fleet.policy.regions.residency,
            heartbeat_s=rules.heartbeat_s,
            background={"the keeping of decisions": decisions.run},
            decision_sink=decisions,
            feed=FeedView(follower, residencies),
        )

    def __serve_build_asgi_app__(self) -> RequestEnvelope:
        app = create_app(self._gateway, trust_edge=True, digests=self._digests)
        garbage.settle()
        return app


def _peers(spec: GatewaySpec, rules: RegionsPolicy) -> Peers:
    book = PeerBook(spec.fleet, spec.region, spec.peers_file)
    if not book.urls():
        return Peers(())
    return peers_of(book, read_key(spec.peer_key_file), rules)


def _local(spec: GatewaySpec, pool: Pool, handle: DeploymentHandle, residency: Residency) -> ServeDispatcher:
    profile, model = spec.fleet.profile(pool), spec.fleet.model_of(pool)
    return ServeDispatcher(
        handle,
        model=model.name,
        residency=residency,
        cost=CostModel(
            fixed_s=profile.cost.fixed_s,
            prefill_s_per_token=profile.cost.prefill_s_per_token,
            decode_s_per_running=profile.cost.decode_s_per_running,
            slot_s=profile.cost.slot_s,
        ),
        slots=profile.max_num_seqs,
        max_requests=pool.max_ongoing_requests,
        vocabulary=vocabulary_digest(model.frontend, spec.folders[model.name]),
    )


def _served(spec: GatewaySpec, pool: Pool, local: ServeDispatcher, peers: Peers) -> ServedModel:
    model = spec.fleet.model_of(pool)
    spill = regions_policy(spec.fleet).spill
    dispatcher = RegionalDispatcher(local, peers, model=model.name, home=spec.region, policy=spill)
    return gateway_parts.served(model, pool.name, spec.folders[model.name], dispatcher)
