"""A fleet: the three sections, read-only, with the look-ups everyone needs.

- A Fleet made by `build` is consistent; so is every one that a `with_*` method makes of it.
- It pickles, and equal content gives equal hashes in any process.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dayzero.config.consistency import Parts, check
from dayzero.config.errors import Fault, FleetError, FleetInvalidError
from dayzero.config.faults import did_you_mean, field_faults
from dayzero.config.infrastructure import Infrastructure, Region
from dayzero.config.policy import Policy
from dayzero.config.record import Record
from dayzero.config.serving import EngineKind, Model, Pool, Profile, Serving
from dayzero.config.yaml_source import Source


class Fleet(Record):
    """Everything a fleet is. Each section has a `hash`; the fleet's own names all three."""

    infrastructure: Infrastructure
    serving: Serving
    policy: Policy = Policy()

    @property
    def hash(self) -> str:
        parts = (self.infrastructure.hash, self.serving.hash, self.policy.hash)
        return hashlib.sha256(":".join(parts).encode()).hexdigest()[:16]

    def hash_of(self, region: str) -> str:
        """Names what one region is: itself, what it serves, the policy, and who the others are.

        What else changes in another region leaves it as it was: where it listens too, since gateways are told of
        that while they run. Raises FleetError.
        """
        pools = self.pools(region)
        models = [self.model_of(pool) for pool in pools]
        records = (self.region(region), *pools, *models, self.serving.gateway, self.policy)
        content = [record.model_dump(mode="json") for record in records]
        content += [{"name": r.name, "at": r.http.internal_url} for r in self.infrastructure.regions]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def region(self, name: str) -> Region:
        """Raises FleetError."""
        regions = {region.name: region for region in self.infrastructure.regions}
        if name not in regions:
            raise FleetError(f"no region is called '{name}'{did_you_mean(name, regions)}")
        return regions[name]

    def model(self, name: str) -> Model | None:
        """By name or alias."""
        for model in self.serving.models:
            if name == model.name or name in model.aliases:
                return model
        return None

    def model_of(self, pool: Pool) -> Model:
        """The model that a pool of this fleet serves."""
        model = self.model(pool.model)
        if model is None:
            raise FleetError(f"pool '{pool.name}' is not of this fleet")
        return model

    def pools(self, region: str) -> tuple[Pool, ...]:
        """The pools of one region, in the file's order."""
        return tuple(pool for pool in self.serving.pools if pool.region == region)

    def profile(self, pool: Pool) -> Profile:
        """The engine profile that a pool of this fleet uses."""
        for model in self.serving.models:
            for profile in model.profiles:
                if model.name == pool.model and profile.name == pool.profile:
                    return profile
        raise FleetError(f"pool '{pool.name}' is not of this fleet")

    def with_engine(self, engine: EngineKind, region: str | None = None) -> "Fleet":
        """Every pool, or those of one region, on `engine`; a model without weights stays simulated.

        Raises FleetInvalidError.
        """
        data = self.model_dump()
        bare = {model.name for model in self.serving.models if model.weights.source == "none"}
        for pool in data["serving"]["pools"]:
            if (region is None or pool["region"] == region) and pool["model"] not in bare:
                pool["engine"] = engine
        return self._made_of(data)

    @property
    def speaks_k3(self) -> bool:
        """Whether a model of it has the frontend `kimi_k3`, and so a vocabulary."""
        return any(model.frontend.kind == "kimi_k3" for model in self.serving.models)

    def with_vocabulary(self, path: str | None) -> "Fleet":
        """Every model of the frontend `kimi_k3` with this vocabulary; None names none. Raises FleetInvalidError."""
        data = self.model_dump()
        for model in data["serving"]["models"]:
            if model["frontend"]["kind"] == "kimi_k3":
                options = model["frontend"]["options"]
                options.pop("vocabulary", None)
                options |= {} if path is None else {"vocabulary": path}
        return self._made_of(data)

    def with_ports(self, ports: Mapping[str, int]) -> "Fleet":
        """The gateways of these regions on other ports. Raises FleetError."""
        for region in ports:
            self.region(region)
        data = self.model_dump()
        for item in data["infrastructure"]["regions"]:
            if item["name"] in ports:
                item["http"]["port"] = ports[item["name"]]
        return self._made_of(data)

    @staticmethod
    def _made_of(data: dict[str, Any]) -> "Fleet":
        return build(Source(tree=data), "the changed fleet")


def build(source: Source, name: str) -> Fleet:
    """Values → a consistent fleet. Raises FleetInvalidError with every fault there is."""
    faults: list[Fault] = list(source.faults)
    fleet: Fleet | None = None
    try:
        fleet = Fleet.model_validate(source.tree)
    except ValidationError as e:
        faults.extend(field_faults(e, Fleet, source))
    faults.extend(source.fault(path, message) for path, message in check(Parts.of(source.tree)))
    if fleet is None or faults:
        raise FleetInvalidError.of(name, faults)
    return fleet
