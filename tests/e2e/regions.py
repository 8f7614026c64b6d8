"""Regions as `dayzero up` starts them, and what a test may know of them: clients, status, processes, stores."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from dayzero.serving.local import keys, ledger, store
from dayzero.serving.local.folders import FleetFolder, RegionFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.probe import get
from dayzero.serving.local.serve_view import ServeView
from dayzero.serving.local.state import RunState
from dayzero.tenancy import StoredKey, add_keys, new_key
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [str(ROOT / name) for name in ("platform", "router", "deployments")]
MODEL, ALIAS, POOL = "smollm2-135m-instruct", "smollm2", "us-east-smollm2"
K3, K3_ALIAS = "kimi-k3", "kimi-k3[1m]"
SECOND_TENANT = "second"
_UP_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Region:
    """A running region. `up_s`: how long `dayzero up` took, for all regions that it started."""

    folder: RegionFolder
    url: str
    dashboard_url: str
    environment: dict[str, str]
    up_s: float

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def key(self) -> str:
        return self.folder.fleet.client_key.read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def second_key(self) -> str:
        """Of another tenant."""
        return (self.folder.fleet.path / SECOND_TENANT).read_text()

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, **({"max_retries": 0} | options))

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=self.key, **({"max_retries": 0} | options)
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return command(self.environment, *words)

    def post(self, content: bytes | str, **headers: str) -> httpx.Response:
        """A chat completion whose body is just these bytes."""
        return httpx.post(
            f"{self.url}/v1/chat/completions",
            content=content,
            headers={**self.headers, "content-type": "application/json", **headers},
            timeout=120,
        )

    # What it says of itself

    def status(self) -> dict[str, Any]:
        answer = get(
            f"{self.url}/internal/v1/status", bearer=keys.operator_key(self.folder.fleet), timeout_s=30
        ).json()
        assert isinstance(answer, dict), "the gateway gives no status"
        return answer

    def replicas(self, model: str = MODEL) -> dict[str, dict[str, Any]]:
        """A model's replicas by name."""
        (found,) = [one for one in self.status()["models"] if one["model"] == model]
        return {row["replica"]: row for row in found["replicas"]}

    def decision(self, request_id: str) -> dict[str, Any]:
        """Why a request of this region went where it went."""
        answer = get(
            f"{self.url}/internal/v1/decisions/{request_id}",
            bearer=keys.operator_key(self.folder.fleet),
            timeout_s=30,
        )
        assert answer.ok, answer
        return answer.json()

    def wait_until_exact(self, timeout_s: float) -> float:
        """Until the gateway knows every replica's cache exactly. The seconds it took."""
        began_s = time.monotonic()

        def exact() -> bool:
            replicas = self.status()["feed"]["replicas"].values()
            return len(replicas) == len(_rows(self.status())) and all(one["exact"] for one in replicas)

        wait_until(exact, timeout_s, self.status)
        return time.monotonic() - began_s

    def serve_view(self) -> ServeView:
        return ServeView.parse(
            get(
                f"{self.dashboard_url}/api/serve/applications/",
                bearer=keys.ray_token(self.folder.fleet),
                timeout_s=30,
            ).json()
        )

    def wait_until_idle(self, timeout_s: float) -> float:
        """Until nothing is counted anywhere: not in the gateway, not at a replica. The seconds it took.

        Replicas report some times a second; only what they said after this was called counts.
        """
        began_s = time.monotonic()

        def idle() -> bool:
            since_s = time.monotonic() - began_s
            status = self.status()
            rows = _rows(status)
            busy = [row[name] for row in rows for name in ("in_flight", "running", "waiting")]
            new = all(row["report_age_s"] + 0.05 < since_s for row in rows)
            return new and status["gateway"]["in_flight"] == 0 and not any(busy)

        wait_until(idle, timeout_s, self.status)
        return time.monotonic() - began_s

    def wait_for_replicas(
        self, count: int, timeout_s: float, without: frozenset[str] = frozenset()
    ) -> dict[str, dict[str, Any]]:
        """Until so many are well, none of an incarnation in `without` among them."""
        found: dict[str, dict[str, Any]] = {}

        def well() -> bool:
            found.clear()
            found.update(
                {
                    name: row
                    for name, row in self.replicas().items()
                    if row["health"] == "ok" and row["incarnation"] not in without
                }
            )
            return len(found) == count

        wait_until(well, timeout_s, self.status)
        return dict(found)

    # Its processes

    def processes(self) -> list[ProcessId]:
        """All of them: the cluster's, the gateway's, the replicas', the store's; oldest first."""
        return ledger.find(self.folder.mark)

    def cluster(self) -> list[ProcessId]:
        """All but the store's: to be killed where a region dies."""
        return [process for process in self.processes() if process.name not in {store.SERVER, store.KEEPER}]

    def store_server(self) -> ProcessId:
        """The Valkey that runs now; another process each time that it was started again."""
        server = store.server(self.folder.short())
        assert server is not None, "no Valkey runs"
        return server

    def store_answers(self) -> bool:
        return store.answers(self.folder.short().store_socket)

    @property
    def store_url(self) -> str:
        return f"unix://{self.folder.short().store_socket}"

    def gateway_process(self) -> psutil.Process:
        (pid,) = [r.pid for r in self.serve_view().replicas if r.deployment == "gateway" and r.pid]
        return psutil.Process(pid)

    def replica_process(self, name: str) -> psutil.Process:
        (pid,) = [replica.pid for replica in self.serve_view().replicas if replica.replica == name]
        assert pid is not None
        return psutil.Process(pid)

    def engine_core(self, name: str) -> psutil.Process:
        """vLLM's own process under a replica."""
        children = self.replica_process(name).children(recursive=True)
        (core,) = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
        return core


def _rows(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Every replica of every model."""
    return [row for model in status["models"] for row in model["replicas"]]


def command(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """`dayzero WORDS`, from the source tree."""
    program = [sys.executable, "-m", "dayzero.cli.main", *words]
    return subprocess.run(
        program,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=_UP_TIMEOUT_S,
    )


@contextlib.contextmanager
def regions(engine: str, *names: str, variables: dict[str, str] | None = None) -> Iterator[dict[str, Region]]:
    """Those of the local fleet, or all: up at the beginning, down at the end; the end asserts that no process is left."""
    scratch = Path(tempfile.mkdtemp(prefix="dz-"))
    folder = FleetFolder(scratch / "run")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= {
        "DAYZERO_RUN": str(folder.path),
        "PYTHONPATH": os.pathsep.join(SOURCES),
        **(variables or {}),
    }
    folder.make()
    second = new_key()
    (folder.path / SECOND_TENANT).write_text(second)
    add_keys(folder.key_digests, [StoredKey.of(second, SECOND_TENANT)])
    only = [word for name in names for word in ("--region", name)]
    try:
        began_s = time.monotonic()
        up = command(environment, "up", "--engine", engine, "--port", str(free_ports(2)), *only, "--json")
        up_s = time.monotonic() - began_s
        assert up.returncode == 0, up.stderr
        running = {}
        for record in json.loads(up.stdout)["regions"]:
            here = folder.region(record["region"])
            state = RunState.read(here.state)
            assert state is not None
            assert record["base_url"] == f"{state.base_url}/v1"
            running[here.name] = Region(here, state.base_url, state.dashboard_url, environment, up_s)
        yield running
        down = command(environment, "down")
        assert down.returncode == 0, down.stderr
        assert ledger.find(folder.mark) == []
        for here in folder.regions():
            shutil.rmtree(here.short().path, ignore_errors=True)
        shutil.rmtree(scratch)
    finally:
        thaw(folder)
        ledger.end(folder.mark)


@contextlib.contextmanager
def region(engine: str, *, variables: dict[str, str] | None = None) -> Iterator[Region]:
    """us-east alone."""
    with regions(engine, "us-east", variables=variables) as running:
        yield running["us-east"]


def thaw(folder: FleetFolder) -> None:
    """A process that a failed test left stopped."""
    for process in ledger.find(folder.mark):
        process.send(signal.SIGCONT)


def wait_until(
    true: Callable[[], object], timeout_s: float, explain: Callable[[], object] = lambda: ""
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {explain()}"
        time.sleep(0.02)


def ask(content: str, **more: Any) -> dict[str, Any]:
    """The arguments of a chat completion with one message."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


def frames(text: str) -> list[str]:
    """The data of a stream's events, comments left out."""
    events = [event for event in text.split("\n\n") if event.startswith("data: ")]
    return [event.removeprefix("data: ") for event in events]
