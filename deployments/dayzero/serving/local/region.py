"""One region of a local fleet: found as it runs, or started in two steps, each of which may wait beside another region's.

- `begin` returns when Ray runs and the application is being deployed; `finish` when the gateway is ready.
- Whoever starts a region ends it where a step fails (`local.fleet`); only a lost race of Ray's is tried again here.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dayzero.config import Fleet, Region
from dayzero.serving.local import haproxy, keys, ledger, runs, store
from dayzero.serving.local.claims import Claims
from dayzero.serving.local.deploy import APPLICATION, Driver, Handoff
from dayzero.serving.local.errors import PreflightError, StartError, TransientStartError
from dayzero.serving.local.folders import RegionFolder
from dayzero.serving.local.options import NOTHING_GIVEN, Options, changes, engine_of
from dayzero.serving.local.ports import RayPorts, choose
from dayzero.serving.local.progress import Progress
from dayzero.serving.local.ray_cluster import (
    NODE_ADDRESS,
    RayCluster,
    driver_environment,
    start_head,
    wait_for_head,
)
from dayzero.serving.local.state import RunState
from dayzero.serving.local.waiting import DRIVER_LOG, HEAD_LOG, Waiting, require_driver, require_head

_TRIES = 3
_STILL_RUNNING_S = 20.0
_AFTER_LOADING_S = 60.0


@dataclass(frozen=True, slots=True)
class Starting:
    """A region whose Ray runs and whose application is being deployed."""

    state: RunState
    driver: Driver
    folder: RegionFolder

    def check(self) -> None:
        """Raises StartError when it can no longer become ready."""
        with _named(self.folder.name):
            require_head(self.state, self.folder.logs)
            require_driver(self.driver.process, self.folder.logs)


@dataclass(frozen=True, slots=True)
class LocalRegion:
    """A region of a fleet, and the folder in which it runs."""

    fleet: Fleet
    folder: RegionFolder
    fleet_name: str
    deploy: str = APPLICATION
    options: Options = NOTHING_GIVEN
    vocabulary: str | None = None
    """Kimi K3's, in words."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Digests of the files that the fleet file only names."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def settings(self) -> Region:
        return self.fleet.region(self.name)

    @property
    def as_wished(self) -> bool:
        """It runs, and was started as it is to be; whether it serves is another question."""
        found = self._found()
        return found is not None and not self._changes(found)

    def running(self, progress: Progress) -> RunState | None:
        """Its state where it serves as wished; one that is being mended gets a moment."""
        found = self._found()
        if found is None:
            return None
        if changed := self._changes(found):
            progress.note(f"{self.name}: {changed}, so it has to be started anew")
            return None
        try:
            with progress.step(f"{self.name}: looking at it") as step:
                waiting = self._waiting(found, _STILL_RUNNING_S)
                waiting.until_ready(step.say, check=lambda: require_head(found, self.folder.logs))
        except Exception as error:  # noqa: BLE001 whatever is wrong with it, the answer is to start anew
            progress.note(f"{self.name}: it runs but does not serve ({error}): starting anew")
            return None
        return self._with_store_kept(found, progress)

    def clear_away(self, progress: Progress) -> None:
        """Ends what an earlier run left: a crashed cluster, an interrupted start, another engine."""
        left = ledger.find(self.folder.mark) if RunState.read(self.folder.state) is None else []
        if left:
            progress.note(
                f"{self.name}: its state file is lost, and {len(left)} of its processes still run: starting anew"
            )
        ended = runs.end([self.folder])
        if ended:
            progress.note(f"{self.name}: ended {len(ended)} processes of an earlier run")

    def begin(self, progress: Progress) -> Starting:
        """Raises StartError or PreflightError; what was started may still run then."""
        self.folder.make()
        with progress.step(f"{self.name}: Ray") as step, _named(self.name):
            state, cluster, driver = self._start_ray()
            step.say(state.dashboard_url)
        if moved := state.ray.moved(self.settings.ray.gcs_port, self.settings.ray.dashboard_port):
            progress.note(f"{self.name}: {moved}")
        driver.begin(Handoff(self.fleet, self.name, self.folder, cluster.address))
        return Starting(state, driver, self.folder)

    def finish(self, starting: Starting, progress: Progress, *, check: Callable[[], None]) -> RunState:
        """Returns when the gateway is ready. Raises StartError, also what `check` raises, which is asked meanwhile."""
        loading_s = max(self.fleet.profile(pool).start_timeout_s for pool in self.fleet.pools(self.name))
        with progress.step(f"{self.name}: gateway, replicas") as step:
            waiting = self._waiting(starting.state, loading_s + _AFTER_LOADING_S)
            waiting.until_ready(step.say, check=check)
        state = starting.state.running()
        state.write(self.folder.state)
        return state

    def _found(self) -> RunState | None:
        found = RunState.read(self.folder.state)
        return found if found is not None and found.phase == "running" and found.alive else None

    def _changes(self, found: RunState) -> str:
        return changes(found, self.fleet, self.options, self.contents)

    def _with_store_kept(self, found: RunState, progress: Progress) -> RunState:
        """A server is started again by its keeper; a keeper by the next `up`, while the region serves on."""
        if found.store is None or found.store.alive:
            return found
        progress.note(f"{self.name}: its Valkey's keeper had ended; both are started again, empty")
        with _named(self.name):
            keeper = store.start(self.folder, self.settings.redis.memory_bytes, found.run_id)
        mended = found.with_store(keeper)
        mended.write(self.folder.state)
        return mended

    def _start_ray(self) -> tuple[RunState, RayCluster, Driver]:
        wished = self.settings.ray
        tried: frozenset[int] = frozenset()
        with Claims() as claims:
            http_port = self.settings.http.port
            if not claims.take(http_port):
                raise PreflightError(
                    f"Another region that starts now takes port {http_port}. Choose another: --port."
                )
            while True:
                ports = choose(wished.gcs_port, wished.dashboard_port, take=claims.take, skip=tried)
                try:
                    return self._try_ray(ports, claims)
                except TransientStartError:
                    tried |= {ports.base}
                    if len(tried) >= _TRIES:
                        raise
                    runs.end([self.folder])

    def _try_ray(self, ports: RayPorts, claims: Claims) -> tuple[RunState, RayCluster, Driver]:
        settings = self.settings
        short = self.folder.short()
        short.make()
        self.folder.link_ray(short.ray)
        haproxy.write_program(self.folder.haproxy_program)
        state = RunState(
            run_id=f"{self.folder.mark}{secrets.token_hex(8)}",
            phase="starting",
            region=self.name,
            engine=engine_of(self.fleet, self.name),
            fleet_name=self.fleet_name,
            region_hash=self.fleet.hash_of(self.name),
            host=settings.http.host,
            http_port=settings.http.port,
            ray=ports,
            ray_address=f"{NODE_ADDRESS}:{ports.gcs}",
            short_folder=str(short.path),
            store_url=store.shown(store.url(self.fleet, self.folder)),
            started_at_s=time.time(),
            engine_option=self.options.engine,
            port_option=self.options.port,
            vocabulary_option=None if self.options.vocabulary is None else str(self.options.vocabulary),
            vocabulary=self.vocabulary,
            contents=dict(self.contents),
        )
        state.write(self.folder.state)
        if settings.redis.url is None:
            keeper = store.start(self.folder, settings.redis.memory_bytes, state.run_id)
            state = state.with_store(keeper)
            state.write(self.folder.state)
        cluster = RayCluster(
            run_id=state.run_id,
            ports=ports,
            folder=short.ray,
            haproxy=short.haproxy,
            haproxy_program=self.folder.haproxy_program,
            token=self.folder.fleet.ray_token,
            logical_cpus=settings.ray.logical_cpus,
            object_store_bytes=settings.ray.object_store_bytes,
        )
        log = self.folder.logs / HEAD_LOG
        head, process = start_head(cluster, log, inherit=claims.descriptors)
        state = state.with_head(head)
        state.write(self.folder.state)
        driver = Driver.start(driver_environment(cluster), self.folder.logs / DRIVER_LOG, self.deploy)
        wait_for_head(cluster, process, log)
        return state, cluster, driver

    def _waiting(self, state: RunState, timeout_s: float) -> Waiting:
        return Waiting(
            region=self.name,
            base_url=state.base_url,
            dashboard_url=state.dashboard_url,
            ray_token=keys.ray_token(self.folder.fleet),
            timeout_s=timeout_s,
            logs=self.folder.logs,
        )


@contextmanager
def _named(region: str) -> Iterator[None]:
    """A failed step says whose it is."""
    try:
        yield
    except StartError as error:
        raise type(error)(f"{region}: {error.message}", **error.fields()) from error
