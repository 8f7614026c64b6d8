"""The gateway as a Serve ingress: builds the core from the fleet and hands Serve its ASGI app."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ray.serve.handle import DeploymentHandle

from dayzero.config import Fleet, Pool
from dayzero.gateway.app import create_app
from dayzero.gateway.middleware import RequestEnvelope
from dayzero.gateway.retry import RetryPolicy
from dayzero.gateway.service import CanaryPolicy, Gateway, GatewayLimits, ServedModel
from dayzero.router.load import CostModel
from dayzero.serving.dispatcher import ServeDispatcher
from dayzero.serving.frontends import load_frontend
from dayzero.telemetry import setup
from dayzero.tenancy import load_keys, load_or_make_secret

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What an ingress is built from. `folders`: each model's files; the key file and the secret are read in place."""

    fleet: Fleet
    region: str
    folders: Mapping[str, Path]
    keys_file: Path
    secret_file: Path


class GatewayIngress:
    """Bound into the Serve application by `dayzero.serving.app.build`; `serve.ingress()` calls the builder."""

    def __init__(self, spec: GatewaySpec, handles: Mapping[str, DeploymentHandle]) -> None:
        policy = spec.fleet.policy
        serving = spec.fleet.serving.gateway
        self._gateway = Gateway(
            region=spec.region,
            models=[_served(spec, pool, handles[pool.name]) for pool in spec.fleet.pools(spec.region)],
            keys=load_keys(spec.keys_file),
            secret=load_or_make_secret(spec.secret_file),
            limits=GatewayLimits(
                max_body_bytes=policy.limits.max_body_bytes,
                max_in_flight=serving.max_ongoing_requests,
                body_timeout_s=policy.limits.body_timeout_s,
                request_timeout_s=policy.limits.request_timeout_s,
            ),
            tracing=setup("dayzero-gateway"),
            retry_policy=RetryPolicy(
                max_attempts=policy.retry.max_attempts,
                budget_share=policy.retry.budget_share,
                budget_floor_per_s=policy.retry.budget_floor_per_s,
            ),
            canary=CanaryPolicy(
                period_s=policy.canary.period_s,
                timeout_s=policy.canary.timeout_s,
                max_tokens=policy.canary.max_tokens,
            ),
        )

    def __serve_build_asgi_app__(self) -> RequestEnvelope:
        return create_app(self._gateway, trust_edge=True)


def _served(spec: GatewaySpec, pool: Pool, handle: DeploymentHandle) -> ServedModel:
    model = spec.fleet.model_of(pool)
    profile = spec.fleet.profile(pool)
    return ServedModel(
        name=model.name,
        aliases=model.aliases,
        pool=pool.name,
        frontend=load_frontend(model.frontend, spec.folders[model.name]),
        dispatcher=ServeDispatcher(
            handle,
            cost=CostModel(
                fixed_s=profile.cost.fixed_s,
                prefill_s_per_token=profile.cost.prefill_s_per_token,
                decode_s_per_running=profile.cost.decode_s_per_running,
                slot_s=profile.cost.slot_s,
            ),
            slots=profile.max_num_seqs,
            max_requests=pool.max_ongoing_requests,
        ),
        max_model_tokens=model.max_model_tokens,
        default_max_tokens=model.default_max_tokens,
        created_s=int(time.time()),
    )
