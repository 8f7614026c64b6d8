"""A local region's life: up and down.

- One command at a time (`lock`).
- `up` is idempotent: what runs as wished is left alone; what does not is ended and started anew.
- A start that fails, or is interrupted, leaves no process behind; ending is never interrupted itself (`signals`).
"""

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dayzero.config import Fleet
from dayzero.serving.local import haproxy, keys, ledger, lock, model_files, preflight, signals
from dayzero.serving.local.claims import Claims
from dayzero.serving.local.deploy import APPLICATION, Driver, Handoff
from dayzero.serving.local.errors import LostKeyError, PreflightError, TransientStartError
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.ports import RayPorts, choose
from dayzero.serving.local.progress import Progress
from dayzero.serving.local.ray_cluster import (
    NODE_ADDRESS,
    RayCluster,
    driver_environment,
    start_head,
    wait_for_head,
)
from dayzero.serving.local.short_folder import ShortFolder
from dayzero.serving.local.state import RunState
from dayzero.serving.local.waiting import Waiting

_TRIES = 3
_STILL_RUNNING_S = 20.0
_AFTER_LOADING_S = 60.0


@dataclass(frozen=True, slots=True)
class Started:
    """What `up` found or made."""

    state: RunState
    was_running: bool


@dataclass(frozen=True, slots=True)
class LocalRegion:
    """One region of a fleet, on this machine, in one run folder."""

    run: RunFolder
    deploy: str = APPLICATION

    def up(self, fleet: Fleet, region: str, *, fleet_name: str, progress: Progress) -> Started:
        """Raises LocalError, TenancySetupError or WeightsError; nothing of the run is left then.

        Except after a LostKeyError: what serves is left alone.
        """
        self.run.make()
        with lock.alone(self.run.lock):
            found = RunState.read(self.run.state)
            if found is not None and self._serves(found, fleet, region, progress):
                self._require_keys()
                return Started(found, was_running=True)
            self._clear_away(found, progress)
            preflight.check(fleet, region, self.run)
            keys.ensure_keys(self.run)
            self._make_model_files(fleet, region, progress)
            try:
                return Started(self._start(fleet, region, fleet_name, progress), was_running=False)
            except BaseException:
                with suppress(
                    KeyboardInterrupt
                ):  # one that waited for the end; what came first is what counts
                    self._end()
                raise

    def down(self) -> list[ProcessId]:
        """Ends everything of this run folder; returns what was ended. Raises BusyError."""
        if not self.run.path.exists():
            with signals.deferred():
                return ledger.end(self.run.mark)
        with lock.alone(self.run.lock):
            return self._end()

    def _require_keys(self) -> None:
        """A region that runs has its keys in memory: files that are lost come back with a new start only."""
        missing = keys.missing(self.run)
        if missing:
            names = ", ".join(str(path) for path in missing)
            raise LostKeyError(
                f"The region runs, but its key files are incomplete: {names} is missing. `make down && make up` "
                "(dayzero down, dayzero up) starts it with new ones and keeps those that are there."
            )

    def _serves(self, found: RunState, fleet: Fleet, region: str, progress: Progress) -> bool:
        """Whether the region runs as wished; one that is being mended gets a moment."""
        if found.phase != "running" or not found.processes or not found.processes[0].alive:
            return False
        http = fleet.region(region).http
        if (found.region, found.fleet_hash, found.http_port) != (region, fleet.hash, http.port):
            progress.note(
                f"the fleet, engine or port changed since {found.engine} was started: starting anew"
            )
            return False
        try:
            with progress.step("looking at the running region") as step:
                waiting = self._waiting(found, _STILL_RUNNING_S)
                waiting.until_ready(step.say, head_alive=lambda: found.processes[0].alive)
        except Exception as error:  # noqa: BLE001 whatever is wrong with it, the answer is to start anew
            progress.note(f"it runs but does not serve ({error}): starting anew")
            return False
        return True

    def _clear_away(self, found: RunState | None, progress: Progress) -> None:
        """Ends what an earlier run left: a crashed cluster, an interrupted start, another engine."""
        left = ledger.find(self.run.mark) if found is None else []
        if left:
            progress.note(
                f"the region's state file is lost, and {len(left)} of its processes still run: starting anew"
            )
        ended = self._end()
        if ended:
            progress.note(f"ended {len(ended)} processes of an earlier run")

    def _make_model_files(self, fleet: Fleet, region: str, progress: Progress) -> None:
        for folder, kind in model_files.needed(fleet, region, self.run.models).items():
            with progress.step(f"model files ({kind})") as step:
                model_files.ensure(kind, folder, step.say, mark=f"{self.run.mark}-files")

    def _start(self, fleet: Fleet, region: str, fleet_name: str, progress: Progress) -> RunState:
        with progress.step("Ray") as step:
            state, cluster, driver = self._start_ray(fleet, region, fleet_name)
            step.say(state.dashboard_url)
        with progress.step("gateway and replicas") as step:
            driver.begin(Handoff(fleet, region, self.run, cluster.address))
            loading_s = max(fleet.profile(pool).start_timeout_s for pool in fleet.pools(region))
            self._waiting(state, loading_s + _AFTER_LOADING_S).until_ready(
                step.say, head_alive=lambda: state.processes[0].alive, driver=driver.process
            )
        state = state.running()
        state.write(self.run.state)
        return state

    def _start_ray(self, fleet: Fleet, region: str, fleet_name: str) -> tuple[RunState, RayCluster, Driver]:
        wished = fleet.region(region).ray
        tried: frozenset[int] = frozenset()
        with Claims() as claims:
            http_port = fleet.region(region).http.port
            if not claims.take(http_port):
                raise PreflightError(
                    f"Another region that starts now takes port {http_port}. Choose another: --port."
                )
            while True:
                ports = choose(wished.gcs_port, wished.dashboard_port, take=claims.take, skip=tried)
                try:
                    return self._try_ray(fleet, region, fleet_name, ports, claims)
                except TransientStartError:
                    tried |= {ports.base}
                    if len(tried) >= _TRIES:
                        raise
                    self._end()

    def _try_ray(
        self, fleet: Fleet, region: str, fleet_name: str, ports: RayPorts, claims: Claims
    ) -> tuple[RunState, RayCluster, Driver]:
        settings = fleet.region(region)
        short = self.run.short()
        short.make()
        self.run.link_ray(short.ray)
        haproxy.write_program(self.run.haproxy_program)
        state = RunState(
            run_id=f"{self.run.mark}-{secrets.token_hex(8)}",
            phase="starting",
            region=region,
            engine=", ".join(dict.fromkeys(pool.engine for pool in fleet.pools(region))),
            fleet_name=fleet_name,
            fleet_hash=fleet.hash,
            host=settings.http.host,
            http_port=settings.http.port,
            ray=ports,
            ray_address=f"{NODE_ADDRESS}:{ports.gcs}",
            short_folder=str(short.path),
            started_at_s=time.time(),
        )
        state.write(self.run.state)
        cluster = RayCluster(
            run_id=state.run_id,
            ports=ports,
            folder=short.ray,
            haproxy=short.haproxy,
            haproxy_program=self.run.haproxy_program,
            token=self.run.ray_token,
            logical_cpus=settings.ray.logical_cpus,
            object_store_bytes=settings.ray.object_store_bytes,
        )
        log = self.run.logs / "ray-head.log"
        head, process = start_head(cluster, log, inherit=claims.descriptors)
        state = state.with_process(head)
        state.write(self.run.state)
        driver = Driver.start(driver_environment(cluster), self.run.logs / "deploy.log", self.deploy)
        wait_for_head(cluster, process, log)
        return state, cluster, driver

    def _waiting(self, state: RunState, timeout_s: float) -> Waiting:
        return Waiting(
            base_url=state.base_url,
            dashboard_url=state.dashboard_url,
            ray_token=keys.ray_token(self.run),
            timeout_s=timeout_s,
            driver_log=self.run.logs / "deploy.log",
            head_log=self.run.logs / "ray-head.log",
        )

    def _end(self) -> list[ProcessId]:
        """Ends every process of this run folder, then removes what only running processes need."""
        with signals.deferred():
            state = RunState.read(self.run.state)
            first = state.processes[:1] if state is not None else ()
            ended = ledger.end(self.run.mark, first=first)
            left = ledger.find(self.run.mark)
            if left:
                names = ", ".join(f"{process.pid} ({process.name})" for process in left)
                raise PreflightError(
                    f"These processes of an earlier run cannot be ended: {names}. End them by id."
                )
            short = ShortFolder(Path(state.short_folder)) if state is not None else self.run.short()
            short.keep_logs_only()
            self.run.state.unlink(missing_ok=True)
        return ended
