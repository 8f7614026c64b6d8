"""What one field cannot know: names that must exist, sums that must fit, limits that must nest.

- Works on whatever parts of a fleet are valid by themselves, so that all faults are found in one reading.
- Yields (path, message); never raises, reads nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from dayzero.config.faults import did_you_mean, field_findings
from dayzero.config.infrastructure import Region
from dayzero.config.policy import Policy, Regions
from dayzero.config.record import Record
from dayzero.config.serving import Frontend, Gateway, KimiK3Options, Model, Pool, Profile
from dayzero.config.yaml_source import Path

Finding = tuple[Path, str]
_RecordT = TypeVar("_RecordT", bound=Record)


@dataclass(frozen=True, slots=True)
class KnownWeights:
    """What weights that we name can hold. Cache bytes a token: 2 x layers x KV heads x head size x 2 bytes."""

    context_tokens: int
    cache_bytes_per_token: int


KNOWN_WEIGHTS = {"smollm2": KnownWeights(context_tokens=8192, cache_bytes_per_token=2 * 30 * 3 * 64 * 2)}


@dataclass(frozen=True, slots=True)
class Parts:
    """The records of a tree that are valid alone, by their index, and every name, valid or not."""

    regions: Mapping[int, Region]
    models: Mapping[int, Model]
    pools: Mapping[int, Pool]
    gateway: Gateway | None
    policy: Policy | None
    region_names: frozenset[str]
    model_names: frozenset[str]
    references: tuple[tuple[Path, str], ...]
    """Each pool's `region` and `model`, where they are text, whatever else is wrong with the pool."""
    complete: bool

    @classmethod
    def of(cls, tree: Any) -> "Parts":
        regions, models, pools = (
            _items(tree, "infrastructure", "regions"),
            _items(tree, "serving", "models"),
            _items(tree, "serving", "pools"),
        )
        valid_regions, valid_models, valid_pools = (
            _valid(regions, Region),
            _valid(models, Model),
            _valid(pools, Pool),
        )
        return cls(
            regions=valid_regions,
            models=valid_models,
            pools=valid_pools,
            gateway=_one(_get(_get(tree, "serving"), "gateway", {}), Gateway),
            policy=_one(_get(tree, "policy", {}), Policy),
            region_names=_names(regions),
            model_names=_names(models),
            references=tuple(
                (("serving", "pools", i, key), name)
                for i, pool in enumerate(pools)
                for key in ("region", "model")
                if isinstance(name := _get(pool, key), str)
            ),
            complete=len(valid_regions) == len(regions) and len(valid_pools) == len(pools),
        )


def check(parts: Parts) -> Iterator[Finding]:
    yield from _duplicates(parts)
    yield from _ports(parts)
    for i, model in parts.models.items():
        yield from _model(("serving", "models", i), model)
    yield from _references(parts)
    for i, pool in parts.pools.items():
        yield from _pool(("serving", "pools", i), pool, parts)
    yield from _unserved(parts)
    yield from _cpus(parts)
    if parts.policy is not None:
        yield from _policy(parts.policy)
        yield from _regions(parts.policy.regions, parts)


def _duplicates(parts: Parts) -> Iterator[Finding]:
    yield from _twice(
        ((("infrastructure", "regions", i, "name"), region.name) for i, region in parts.regions.items()),
        "the name of another region",
    )
    yield from _twice(
        ((("serving", "pools", i, "name"), pool.name) for i, pool in parts.pools.items()),
        "the name of another pool",
    )
    names: list[Finding] = []
    for i, model in parts.models.items():
        path: Path = ("serving", "models", i)
        names.append(((*path, "name"), model.name))
        names.extend(((*path, "aliases", k), alias) for k, alias in enumerate(model.aliases))
        yield from _twice(
            (((*path, "profiles", k, "name"), profile.name) for k, profile in enumerate(model.profiles)),
            "the name of another profile of this model",
        )
    yield from _twice(names, "a name or alias of a model already")


def _ports(parts: Parts) -> Iterator[Finding]:
    taken: dict[int, str] = {}
    for i, region in parts.regions.items():
        path: Path = ("infrastructure", "regions", i)
        for steps, port in (
            (("http", "port"), region.http.port),
            (("ray", "gcs_port"), region.ray.gcs_port),
            (("ray", "dashboard_port"), region.ray.dashboard_port),
        ):
            use = f"{region.name}'s {'.'.join(steps)}"
            if port in taken:
                yield (*path, *steps), f"port {port} is {taken[port]} too; local regions share one machine"
            taken.setdefault(port, use)


def _model(path: Path, model: Model) -> Iterator[Finding]:
    weights = model.weights
    if weights.source == "path" and weights.path is None:
        yield (*path, "weights", "path"), "is missing; `source: path` needs the folder's absolute path"
    if weights.source != "path" and weights.path is not None:
        yield (*path, "weights", "path"), f"only with `source: path`; the source here is {weights.source}"
    known = KNOWN_WEIGHTS.get(weights.source)
    if known and model.max_model_tokens > known.context_tokens:
        yield (
            (*path, "max_model_tokens"),
            f"{weights.source} was trained for {known.context_tokens} tokens, found {model.max_model_tokens}",
        )
    yield from _frontend((*path, "frontend"), model.frontend, weights.source)
    if model.default_max_tokens >= model.max_model_tokens:
        yield (
            (*path, "default_max_tokens"),
            f"must leave room for a prompt: less than max_model_tokens ({model.max_model_tokens})",
        )
    for i, profile in enumerate(model.profiles):
        yield from _profile((*path, "profiles", i), profile, model)


def _frontend(path: Path, frontend: Frontend, source: str) -> Iterator[Finding]:
    if frontend.kind == "chat_template":
        if source == "none":
            yield (*path, "kind"), "chat_template comes with the weights, and `source: none` has none"
        return
    if source == "smollm2":
        yield (*path, "kind"), "kimi_k3 makes tokens that SmolLM2's weights do not know"
    try:
        KimiK3Options.model_validate(frontend.options)
    except ValidationError as error:
        for at, message in field_findings(error, KimiK3Options, {}):
            yield (*path, "options", *at), message


def _profile(path: Path, profile: Profile, model: Model) -> Iterator[Finding]:
    unit = profile.match_unit_tokens
    if unit is not None and profile.block_tokens % unit:
        yield (*path, "match_unit_tokens"), f"must divide block_tokens ({profile.block_tokens}), found {unit}"
    if profile.block_tokens > model.max_model_tokens:
        yield (*path, "block_tokens"), f"a block is longer than max_model_tokens ({model.max_model_tokens})"
    if profile.max_num_batched_tokens < profile.max_num_seqs:
        yield (
            (*path, "max_num_batched_tokens"),
            f"a step must hold a token of each of max_num_seqs ({profile.max_num_seqs}) requests",
        )
    known = KNOWN_WEIGHTS.get(model.weights.source)
    if known:
        bytes_per_token = known.cache_bytes_per_token * (2 if profile.dtype == "float32" else 1)
        needed = model.max_model_tokens * bytes_per_token
        if profile.kv_cache_bytes < needed:
            yield (
                (*path, "kv_cache_bytes"),
                (
                    f"one request of max_model_tokens ({model.max_model_tokens}) needs {needed} bytes"
                    f" at {profile.dtype}, found {profile.kv_cache_bytes}"
                ),
            )


def _references(parts: Parts) -> Iterator[Finding]:
    aliases = {alias: model.name for model in parts.models.values() for alias in model.aliases}
    for path, name in parts.references:
        kind = path[-1]
        known = parts.region_names if kind == "region" else parts.model_names
        if kind == "model" and name in aliases:
            yield path, f"'{name}' is an alias; write '{aliases[name]}'"
        elif name not in known:
            yield path, f"no {kind} is called '{name[:64]}'{did_you_mean(name, sorted(known))}"


def _pool(path: Path, pool: Pool, parts: Parts) -> Iterator[Finding]:
    for model in parts.models.values():
        if model.name == pool.model:
            yield from _pool_profile(path, pool, model)
            if pool.engine == "vllm" and model.weights.source == "none":
                yield (
                    (*path, "engine"),
                    f"vllm needs weights, and {model.name} has none (`source: none`): only sim can serve it",
                )
            if pool.sim.script is not None and model.frontend.kind != "kimi_k3":
                yield (
                    (*path, "sim", "script"),
                    f"only for a model of the frontend kimi_k3; {model.name}'s is {model.frontend.kind}",
                )


def _pool_profile(path: Path, pool: Pool, model: Model) -> Iterator[Finding]:
    profiles = {profile.name: profile for profile in model.profiles}
    profile = profiles.get(pool.profile)
    if profile is None:
        hint = did_you_mean(pool.profile, profiles)
        yield (*path, "profile"), f"{model.name} has no profile called '{pool.profile}'{hint}"
    elif pool.max_ongoing_requests < profile.max_num_seqs:
        yield (
            (*path, "max_ongoing_requests"),
            f"the engine could never fill a step: at least the profile's max_num_seqs ({profile.max_num_seqs})",
        )


def _unserved(parts: Parts) -> Iterator[Finding]:
    if not parts.complete:
        return
    served = {pool.model for pool in parts.pools.values()}
    for i, model in parts.models.items():
        if model.name not in served:
            yield (
                ("serving", "models", i, "name"),
                f"no pool serves '{model.name}'; add one or remove the model",
            )


def _cpus(parts: Parts) -> Iterator[Finding]:
    if not parts.complete or parts.gateway is None:
        return
    for i, region in parts.regions.items():
        pools = [pool for pool in parts.pools.values() if pool.region == region.name]
        asked = parts.gateway.replicas * parts.gateway.cpus + sum(pool.replicas * pool.cpus for pool in pools)
        if asked > region.ray.logical_cpus:
            yield (
                ("infrastructure", "regions", i, "ray", "logical_cpus"),
                (
                    f"the gateway and pools of '{region.name}' ask for {asked:g} CPUs,"
                    f" it has {region.ray.logical_cpus}: replicas would wait for ever"
                ),
            )


def _policy(policy: Policy) -> Iterator[Finding]:
    if policy.canary.timeout_s >= policy.limits.request_timeout_s:
        yield (
            ("policy", "canary", "timeout_s"),
            f"must be less than limits.request_timeout_s ({policy.limits.request_timeout_s:g})",
        )


def _regions(rules: Regions, parts: Parts) -> Iterator[Finding]:
    path: Path = ("policy", "regions")
    if rules.heartbeat_s >= rules.lost_after_s:
        yield (
            (*path, "heartbeat_s"),
            f"must be less than lost_after_s ({rules.lost_after_s:g}): every stream would count as lost",
        )
    if rules.spill.max_age_s <= rules.probe_period_s + rules.probe_timeout_s:
        yield (
            (*path, "spill", "max_age_s"),
            (
                f"must be more than probe_period_s + probe_timeout_s"
                f" ({rules.probe_period_s + rules.probe_timeout_s:g}): a region would be stale between two probes"
            ),
        )
    for tenant, regions in rules.residency.items():
        if not regions:
            yield (*path, "residency", tenant), "names no region: this tenant could be served nowhere"
        for i, name in enumerate(regions):
            if name not in parts.region_names:
                hint = did_you_mean(name, sorted(parts.region_names))
                yield (*path, "residency", tenant, i), f"no region is called '{name}'{hint}"


def _twice(names: Iterable[Finding], what: str) -> Iterator[Finding]:
    seen: set[str] = set()
    for path, name in names:
        if name in seen:
            yield path, f"'{name}' is {what}"
        seen.add(name)


def _get(tree: Any, key: str, default: Any = None) -> Any:
    return tree.get(key, default) if isinstance(tree, Mapping) else default


def _items(tree: Any, section: str, key: str) -> tuple[Any, ...]:
    items = _get(_get(tree, section), key)
    return items if isinstance(items, tuple) else ()


def _names(items: Iterable[Any]) -> frozenset[str]:
    return frozenset(name for item in items if isinstance(name := _get(item, "name"), str))


def _valid(items: Iterable[Any], kind: type[_RecordT]) -> dict[int, _RecordT]:
    records = ((i, _one(item, kind)) for i, item in enumerate(items))
    return {i: record for i, record in records if record is not None}


def _one(value: Any, kind: type[_RecordT]) -> _RecordT | None:
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None
