"""`build(fleet, region)`: a region's Serve application; `deploy` puts it on a running Ray cluster.

One deployment a pool, and the gateway as the ingress before them. Serve owns their life: placement, health, restarts,
draining.
"""

from collections.abc import Mapping
from pathlib import Path

from ray import serve
from ray.serve import Application
from ray.serve.config import HTTPOptions, RequestRouterConfig

from dayzero.config import Fleet, Pool
from dayzero.serving.engines.factory import EngineSpec, engine_environment
from dayzero.serving.ingress import GatewayIngress, GatewaySpec
from dayzero.serving.replica import Replica

APPLICATION = "dayzero"
STATS_PERIOD_S = 0.3
"""How often Serve asks replicas for their stats; they reached the router 0.1 s later (docs/adr/0003)."""


def build(
    fleet: Fleet,
    region: str,
    *,
    folders: Mapping[str, Path | None],
    run_dir: Path,
    keys_file: Path,
    secret_file: Path,
    peer_key_file: Path,
    store_url: str,
    peers_file: Path | None = None,
) -> Application:
    """`folders`: each model's files by name. `run_dir`: a short path for the engines' sockets.

    `store_url`: the region's Redis or Valkey; it may hold a password. `peer_key_file`: with which regions call one another.
    `peers_file`: where they are, read while the gateway serves (`peer_book`); without it, where the fleet says.
    """
    handles = {pool.name: _replicas(fleet, pool, folders, run_dir, store_url) for pool in fleet.pools(region)}
    gateway = fleet.serving.gateway
    ingress = serve.deployment(serve.ingress()(GatewayIngress)).options(
        name="gateway",
        num_replicas=gateway.replicas,
        # The gateway's own limit answers first, in the dialect's words.
        max_ongoing_requests=gateway.max_ongoing_requests + 64,
        ray_actor_options={"num_cpus": gateway.cpus},
        graceful_shutdown_timeout_s=fleet.policy.drain_timeout_s,
    )
    spec = GatewaySpec(fleet, region, folders, keys_file, secret_file, peer_key_file, store_url, peers_file)
    return ingress.bind(spec, handles)


def deploy(app: Application, fleet: Fleet, region: str) -> None:
    """On the cluster that ray is connected to. Returns once Serve has accepted it; replicas may still be loading."""
    http = fleet.region(region).http
    serve.start(http_options=HTTPOptions(host=http.host, port=http.port))
    serve.run_many(
        [serve.RunTarget(target=app, name=APPLICATION, route_prefix="/")], wait_for_applications_running=False
    )


def _replicas(
    fleet: Fleet, pool: Pool, folders: Mapping[str, Path | None], run_dir: Path, store_url: str
) -> Application:
    spec = EngineSpec(
        pool=pool,
        model=fleet.model_of(pool),
        profile=fleet.profile(pool),
        folder=folders[pool.model],
        run_dir=run_dir,
        store_url=store_url,
    )
    deployment = serve.deployment(Replica).options(
        name=pool.name,
        num_replicas=pool.replicas,
        max_ongoing_requests=pool.max_ongoing_requests,
        ray_actor_options={
            "num_cpus": pool.cpus,
            "runtime_env": {"env_vars": engine_environment(spec)},
        },
        health_check_period_s=pool.health.period_s,
        health_check_timeout_s=pool.health.timeout_s,
        graceful_shutdown_timeout_s=fleet.policy.drain_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
        request_router_config=RequestRouterConfig(
            request_router_class="dayzero.serving.request_router:PlacementRouter",
            request_routing_stats_period_s=STATS_PERIOD_S,
            request_routing_stats_timeout_s=5.0,
        ),
    )
    return deployment.bind(spec)
