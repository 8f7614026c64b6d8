"""What every gateway is made of, from the fleet file: for a region's ingress and for a gateway alone."""

import time
from pathlib import Path

from dayzero.api.contracts import contract_of
from dayzero.config import Fleet, Model
from dayzero.gateway.dispatch import Dispatcher
from dayzero.gateway.retry import RetryPolicy
from dayzero.gateway.service import CanaryPolicy, GatewayLimits, ServedModel
from dayzero.serving.frontends import load_frontend, vocabulary_digest


def limits(fleet: Fleet) -> GatewayLimits:
    policy = fleet.policy.limits
    return GatewayLimits(
        max_body_bytes=policy.max_body_bytes,
        max_in_flight=fleet.serving.gateway.max_ongoing_requests,
        body_timeout_s=policy.body_timeout_s,
        request_timeout_s=policy.request_timeout_s,
    )


def retry_policy(fleet: Fleet) -> RetryPolicy:
    retry = fleet.policy.retry
    return RetryPolicy(
        max_attempts=retry.max_attempts,
        budget_share=retry.budget_share,
        budget_floor_per_s=retry.budget_floor_per_s,
    )


def canary_policy(fleet: Fleet) -> CanaryPolicy:
    canary = fleet.policy.canary
    return CanaryPolicy(period_s=canary.period_s, timeout_s=canary.timeout_s, max_tokens=canary.max_tokens)


def served(model: Model, pool: str, folder: Path | None, dispatcher: Dispatcher) -> ServedModel:
    """`folder`: the model's files. `pool`: what metrics call those who serve it."""
    return ServedModel(
        name=model.name,
        aliases=model.aliases,
        pool=pool,
        frontend=load_frontend(model.frontend, folder),
        dispatcher=dispatcher,
        max_model_tokens=model.max_model_tokens,
        default_max_tokens=model.default_max_tokens,
        created_s=int(time.time()),
        contract=contract_of(model.frontend.kind),
        vocabulary=vocabulary_digest(model.frontend, folder),
    )
