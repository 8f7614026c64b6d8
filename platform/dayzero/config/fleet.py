"""A fleet: the three sections, read-only, with the look-ups everyone needs.

- A Fleet made by `build` is consistent; so is every one that a `with_*` method makes of it.
- It pickles, and equal content gives equal hashes in any process.
"""

import hashlib
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

    def with_engine(self, engine: EngineKind) -> "Fleet":
        """Every pool on `engine`. Raises FleetInvalidError."""
        data = self.model_dump()
        for pool in data["serving"]["pools"]:
            pool["engine"] = engine
        return self._made_of(data)

    def with_port(self, port: int, region: str | None = None) -> "Fleet":
        """A region's gateway on another port; the name may be left out where there is one region only."""
        if region is None:
            if len(self.infrastructure.regions) > 1:
                names = ", ".join(r.name for r in self.infrastructure.regions)
                raise FleetError(f"say which region gets port {port}: {names}")
            region = self.infrastructure.regions[0].name
        self.region(region)
        data = self.model_dump()
        for item in data["infrastructure"]["regions"]:
            if item["name"] == region:
                item["http"]["port"] = port
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
