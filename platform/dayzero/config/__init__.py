"""Fleet files: one YAML of three sections, checked and frozen. Imports neither ray nor torch.

- `load(path)` and `parse(text)` give a `Fleet` or raise a `FleetError` whose message can be shown as it is.
- Every fault of a file is reported at once, as `FILE:LINE:COLUMN: path: what was expected`.
"""

from dayzero.config.errors import Fault, FleetError, FleetFileError, FleetInvalidError
from dayzero.config.fleet import Fleet
from dayzero.config.infrastructure import Http, Infrastructure, RayCluster, Redis, Region
from dayzero.config.load import fault_at, load, parse
from dayzero.config.policy import Canary, Limits, Policy, Regions, Retry, Spill
from dayzero.config.serving import (
    Cost,
    Dtype,
    EngineKind,
    Frontend,
    FrontendKind,
    Gateway,
    Health,
    KimiK3Options,
    Model,
    Pool,
    Profile,
    Serving,
    Sim,
    Weights,
)

__all__ = [
    "Canary",
    "Cost",
    "Dtype",
    "EngineKind",
    "Fault",
    "Fleet",
    "FleetError",
    "FleetFileError",
    "FleetInvalidError",
    "Frontend",
    "FrontendKind",
    "Gateway",
    "Health",
    "Http",
    "Infrastructure",
    "KimiK3Options",
    "Limits",
    "Model",
    "Policy",
    "Pool",
    "Profile",
    "RayCluster",
    "Redis",
    "Region",
    "Regions",
    "Retry",
    "Serving",
    "Sim",
    "Spill",
    "Weights",
    "fault_at",
    "load",
    "parse",
]
