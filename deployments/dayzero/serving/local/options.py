"""What `up` was told beside the fleet file: an engine, a port, a vocabulary; and what it remembers of that.

- An option stays with the region it was given for, until `down`: a later start without it heals the region and never
  converts it. What the fleet file says of everything else counts at every start.
- A file that the fleet only names, such as a script, counts by what is in it.
- `--port` names the port of the first region that is to be started; the others get those after it.
- A region that runs and is not to be started is where it runs, whatever the file says.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from dayzero.config import EngineKind, Fleet, FleetInvalidError
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.state import RunState

_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Options:
    """None: not given."""

    engine: EngineKind | None = None
    port: int | None = None
    vocabulary: Path | None = None
    """Absolute."""


NOTHING_GIVEN = Options()


def ports_from(port: int, fleet: Fleet, names: Sequence[str] | None) -> dict[str, int]:
    """In the file's order. Raises PreflightError for what cannot be a port."""
    wished = [r.name for r in fleet.infrastructure.regions if names is None or r.name in names]
    if not 1 <= port <= _LAST_PORT - len(wished) + 1:
        more = f", and {len(wished)} regions need as many ports in a row" if len(wished) > 1 else ""
        raise PreflightError(f"--port {port}: a port is a number from 1 to {_LAST_PORT}{more}.")
    return {name: port + place for place, name in enumerate(wished)}


def by_region(
    states: Mapping[str, RunState], given: Options, fleet: Fleet, names: Sequence[str] | None
) -> dict[str, Options]:
    """The options that hold for each region of the fleet from now on. Raises PreflightError."""
    ports = ports_from(given.port, fleet, names) if given.port is not None else {}
    held: dict[str, Options] = {}
    for region in fleet.infrastructure.regions:
        name, state = region.name, states.get(region.name)
        kept = _kept(state) if state is not None else Options()
        told = given if names is None or name in names else Options()
        held[name] = Options(
            engine=told.engine or kept.engine,
            port=ports.get(name, kept.port),
            vocabulary=told.vocabulary or kept.vocabulary,
        )
    return held


def _kept(state: RunState) -> Options:
    named = state.vocabulary_option
    return Options(state.engine_option, state.port_option, None if named is None else Path(named))


def applied(
    fleet: Fleet,
    options: Mapping[str, Options],
    states: Mapping[str, RunState],
    names: Sequence[str] | None,
) -> Fleet:
    """The fleet as it shall run. Raises FleetInvalidError where two things would have one port."""
    for name, held in options.items():
        if held.engine is not None:
            fleet = fleet.with_engine(held.engine, region=name)
    ports = {name: held.port for name, held in options.items() if held.port is not None}
    if names is not None:
        ports |= {
            name: state.http_port for name, state in states.items() if name in options and name not in names
        }
    return fleet.with_ports(ports) if ports else fleet


def for_region(fleet: Fleet, held: Options) -> Fleet:
    """The fleet as one region is to see it: regions may have been started with different vocabularies."""
    return fleet if held.vocabulary is None else fleet.with_vocabulary(str(held.vocabulary))


def engine_of(fleet: Fleet, region: str) -> str:
    """As a run state names it: of the pools whose model has weights, since the others have no choice."""
    pools = fleet.pools(region)
    free = [pool for pool in pools if fleet.model_of(pool).weights.source != "none"]
    return ", ".join(dict.fromkeys(pool.engine for pool in free or pools))


def changes(
    found: RunState,
    fleet: Fleet,
    held: Options = NOTHING_GIVEN,
    contents: Mapping[str, str] | None = None,
) -> str:
    """What of a region is no longer as it was when it was started, in words; "" where nothing is.

    `fleet`: as the region is to see it, by the options `held`. `contents`: as `RunState` has them.
    """
    then, now = found.contents or {}, contents or {}
    edited = [f"{what} changed" for what in now if what in then and then[what] != now[what]]
    return ", ".join([*_settings(found, fleet, held), *edited])


def _settings(found: RunState, fleet: Fleet, held: Options) -> list[str]:
    name = found.region
    if found.region_hash == fleet.hash_of(name):
        return []
    engine, port = engine_of(fleet, name), fleet.region(name).http.port
    said: list[str] = []
    as_found = fleet
    if found.engine != engine:
        said.append(f"the engine changes from {found.engine} to {engine}")
        if found.engine in get_args(EngineKind):  # one for all its pools
            as_found = as_found.with_engine(cast("EngineKind", found.engine), region=name)
    if found.http_port != port:
        said.append(f"the port changes from {found.http_port} to {port}")
        with suppress(FleetInvalidError):  # another region is to have it now; the port is reason enough
            as_found = as_found.with_ports({name: found.http_port})
    vocabulary = None if held.vocabulary is None else str(held.vocabulary)
    if found.vocabulary_option != vocabulary:
        said.append(f"the vocabulary changes to {vocabulary}")
        as_found = as_found.with_vocabulary(found.vocabulary_option)
    if found.region_hash != as_found.hash_of(name) and as_found.region(name).http.port == found.http_port:
        said.append("the fleet file changed")
    return said
