"""SimulatedProfile: what a simulated replica is; the named ones stand in `performance.json`."""

from functools import cache
from importlib import resources

import msgspec

from dayzero.engine.block_manager import CacheLayout
from dayzero.engine.errors import EngineStartError
from dayzero.engine.performance import StepModel
from dayzero.engine.simulated_scheduler import BatchLimits


class SimulatedProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica's model name, step times, cache and batch limits."""

    model: str
    step: StepModel
    cache: CacheLayout
    limits: BatchLimits


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: list[str]
    profiles: dict[str, SimulatedProfile]


@cache
def _profiles() -> dict[str, SimulatedProfile]:
    data = resources.files("dayzero.engine").joinpath("performance.json").read_bytes()
    return msgspec.json.decode(data, type=_File).profiles


def profile_names() -> tuple[str, ...]:
    return tuple(_profiles())


def load_profile(name: str) -> SimulatedProfile:
    """Raises EngineStartError that names the profiles there are."""
    try:
        return _profiles()[name]
    except KeyError:
        known = ", ".join(profile_names())
        raise EngineStartError(f"no simulated profile is called {name!r}; there are: {known}") from None
