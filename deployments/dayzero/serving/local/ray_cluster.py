"""One single-node Ray cluster as a child process: its environment, its command line, its start.

- `ray start --head --block` in a session of its own: it watches Ray's processes and ends them when it is ended.
- Whoever reaches Ray's ports may run code, and Ray opens some of them on every address: those ask for a token that only
  this user can read. Three that tell metrics to everybody who can reach this machine do not, and no flag of Ray's binds
  them elsewhere (docs/adr/0003).
- The node's address is a loopback one, so that a laptop may change its network. Not 127.0.0.1, which Ray replaces by
  an outside address.
- Nothing of Ray in the caller's environment (RAY_ADDRESS and the like) reaches the cluster.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dayzero.serving.local.errors import StartError, TransientStartError
from dayzero.serving.local.haproxy import max_connections
from dayzero.serving.local.ledger import MARK_VARIABLE, ProcessId
from dayzero.serving.local.logs import tail
from dayzero.serving.local.ports import LOOPBACK, RayPorts

_STARTED = "Ray runtime started"
NODE_ADDRESS = "127.0.0.2"
_START_TIMEOUT_S = 180.0
_SERVE_SPANS = "dayzero.telemetry.tracing:serve_span_processors"
# Ray's programs say why they ended in logs of their own.
_PROGRAM_LOGS = ("gcs_server.out", "raylet.out")
_TOO_SLOW = ("timed out during startup", "timed out waiting for file")
_PORT_WORDS = (
    "address already in use",
    "is used by other components",
    "failed to start the grpc server",
    "failed to bind",
)


@dataclass(frozen=True, slots=True)
class RayCluster:
    """What a cluster is started with."""

    run_id: str
    ports: RayPorts
    folder: Path
    haproxy: Path
    """The folder of HAProxy's files."""
    haproxy_program: Path
    token: Path
    logical_cpus: int
    object_store_bytes: int

    @property
    def address(self) -> str:
        return f"{NODE_ADDRESS}:{self.ports.gcs}"

    def command(self) -> list[str]:
        ports = self.ports
        low, high = ports.workers
        flags = {
            "temp-dir": self.folder,
            "node-ip-address": NODE_ADDRESS,
            "port": ports.gcs,
            "node-manager-port": ports.inner(1),
            "object-manager-port": ports.inner(2),
            "dashboard-agent-listen-port": ports.inner(3),
            "dashboard-agent-grpc-port": ports.inner(4),
            "runtime-env-agent-port": ports.inner(5),
            "metrics-export-port": ports.inner(6),
            "ray-client-server-port": ports.inner(7),
            "min-worker-port": low,
            "max-worker-port": high,
            "include-dashboard": "true",
            "dashboard-host": LOOPBACK,
            "dashboard-port": ports.dashboard,
            "include-log-monitor": "false",  # it would copy workers' logs to drivers; ours has none to show
            "num-cpus": self.logical_cpus,
            "num-gpus": 0,
            "object-store-memory": self.object_store_bytes,
        }
        program = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
        ]
        return program + [f"--{name}={value}" for name, value in flags.items()]


def ray_environment(cluster: RayCluster, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the cluster's processes and of every driver that connects to it."""
    kept = {name: value for name, value in variables.items() if not name.startswith("RAY_")}
    roots = [str(Path(root).absolute()) for root in kept.get("PYTHONPATH", "").split(os.pathsep) if root]
    own = {
        MARK_VARIABLE: cluster.run_id,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        # Spans that are not ours: Ray Serve's, vLLM's.
        "OTEL_SERVICE_NAME": kept.get("OTEL_SERVICE_NAME", "dayzero-serve"),
        # Ray renames its processes in place; without this it writes over their environment, the mark included.
        "SPT_NOENV": "1",
        "DASHBOARD_METRIC_PORT": str(cluster.ports.inner(8)),
        "AUTOSCALER_METRIC_PORT": str(cluster.ports.inner(9)),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # One machine: nobody else could take the requests over, so ending at once loses nothing.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        **serve_environment(cluster, kept),
    }
    for name in ("no_proxy", "NO_PROXY"):
        own[name] = ",".join(filter(None, (kept.get(name), "localhost", LOOPBACK, NODE_ADDRESS)))
    if roots:  # relative to where the caller stands, not to where a worker runs
        own["PYTHONPATH"] = os.pathsep.join(roots)
    return kept | own


def driver_environment(cluster: RayCluster, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For drivers: a Serve handle in a driver has no event loop of the kind that the throughput switch counts on.

    A handle that a driver binds into an application keeps the driver's own default of how to call: by gRPC, as the
    switch has it, where Serve's plain default passes every answer through the object store (docs/adr/0003).
    """
    environment = ray_environment(cluster, variables)
    del environment["RAY_SERVE_THROUGHPUT_OPTIMIZED"]
    return environment | {"RAY_SERVE_USE_GRPC_BY_DEFAULT": "1"}


def serve_environment(cluster: RayCluster, variables: Mapping[str, str]) -> dict[str, str]:
    """Ray Serve's own switches. The files and ports of its HAProxy would collide between clusters on one host."""
    from dayzero.telemetry.export import traces_endpoint  # noqa: PLC0415 0.15 s of imports that only a start needs

    folder = cluster.haproxy
    inner = cluster.ports.inner
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(cluster.haproxy_program),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        # After a reload the old worker keeps its streams this long; Ray's 120 s would cut an answer in its middle.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        "RAY_SERVE_HAPROXY_MAXCONN": str(max_connections()),
        # For a client that owes a body or reads nothing of its answer; not for one that waits for its answer.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
        # A dead HAProxy is started anew after three failed checks. One that is only slow has as long as by default.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "20",
        # Serve kills a proxy that needs more than 5 s to start, and then again: on a busy machine, for ever.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "60",
        # Between gateway and replica: a million token ids are 4 MB, where gRPC's own limit lies.
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 * 1024 * 1024),
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "dayzero.serving.edge:middlewares",
        # Named, it makes Serve's spans whether or not anybody takes them: half of a replica's work for a request.
        "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": _SERVE_SPANS if traces_endpoint(variables) else "",
        "RAY_SERVE_TRACING_SAMPLING_RATIO": "0",  # the gateway's edge decides; Serve follows the parent
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(inner(10)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(inner(11)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(inner(12)),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(inner(13)),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(inner(20)),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(inner(59)),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(inner(60)),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(inner(99)),
    }


def start_head(
    cluster: RayCluster, log: Path, *, inherit: tuple[int, ...] = ()
) -> tuple[ProcessId, subprocess.Popen[bytes]]:
    """Starts the head; returns at once, with the process to wait for. It holds the descriptors in `inherit`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            cluster.command(),
            env=ray_environment(cluster),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=inherit,
        )
    identity = ProcessId.of(process.pid)
    if identity is None:
        raise StartError("Ray ended as soon as it was started.", log=tail(log))
    return identity, process


def wait_for_head(cluster: RayCluster, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when the head says that Ray runs. Raises TransientStartError or StartError."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        code = process.poll()
        said = log.read_text(errors="replace")
        words = (said + _words_of_programs(cluster.folder, process.pid)).lower()
        if any(sign in words for sign in _PORT_WORDS):  # Ray itself would wait for half a minute yet
            raise TransientStartError("A port that Ray needs was taken while it started.", log=tail(log))
        if any(sign in words for sign in _TOO_SLOW):
            raise TransientStartError(
                "Ray gave up on itself: this machine is too busy to start it now.", log=tail(log)
            )
        if code is not None:
            raise StartError(f"Ray did not start (exit {code}). Its own words are above.", log=tail(log))
        if _STARTED in said:
            return
        time.sleep(0.2)
    raise StartError(
        f"Ray did not start within {_START_TIMEOUT_S:.0f} s: the machine may be overloaded.", log=tail(log)
    )


def _words_of_programs(folder: Path, head_pid: int) -> str:
    """The last words of a session's programs; Ray names a session after the process that starts it."""
    logs = [path / "logs" for path in folder.glob(f"session_*_{head_pid}")]
    return "".join(tail(place / name, 400) for place in logs for name in _PROGRAM_LOGS)
