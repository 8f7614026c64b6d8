"""`dayzero gateway`: a gateway alone, as people start it, before a region that really listens."""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from dayzero.config import load, parse
from dayzero.serving import edge_gateway
from dayzero.serving.edge_gateway import EdgeFiles
from dayzero.serving.errors import EdgeSetupError
from dayzero.serving.peer_book import PeerBook
from dayzero.serving.region_peers import regions_policy
from dayzero.tenancy import StoredKey, add_keys
from dayzero.tenancy.private_file import write_private
from dayzero.testing.scripted_engine import say
from tests.integration.region_gateways import ASK, CLIENT_KEY, MODEL, PEER_KEY, region
from tests.integration.test_regions import TEXT, engine_saying
from tests.ports import free_port

LOCAL = Path("deployments/local.yaml")


@pytest.fixture
def files(tmp_path, smollm2_folder):
    """A run folder as a region's start leaves it."""
    run = EdgeFiles(tmp_path / "keys", tmp_path / "secret", tmp_path / "peer.key", tmp_path / "models")
    add_keys(run.key_digests, [StoredKey.of(CLIENT_KEY, "acme")])
    write_private(run.peer_key, PEER_KEY.encode() + b"\n")
    run.models.mkdir()
    (run.models / "smollm2").symlink_to(smollm2_folder)
    return run


def fleet_at(url, tmp_path):
    tree = yaml.safe_load(LOCAL.read_text())
    tree["infrastructure"]["regions"][0]["http"]["internal_url"] = url
    tree["infrastructure"]["regions"][1]["http"]["internal_url"] = "http://127.0.0.1:9"
    for part, key in (("models", "name"), ("pools", "model")):  # the region here serves one
        tree["serving"][part] = [one for one in tree["serving"][part] if one[key] == MODEL]
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@contextlib.asynccontextmanager
async def edge_process(fleet, run_folder):
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "dayzero.cli.main",
            "gateway",
            str(fleet),
            "--port",
            str(port),
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ
        | {
            "DAYZERO_RUN": str(run_folder),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
    )
    try:
        async with asyncio.timeout(60):
            greeting = await process.stdout.readline()
        yield process, f"http://127.0.0.1:{port}", greeting.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ready(http):
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await http.get("/readyz")
                if answer.status_code == 200:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_an_edge_serves_the_regions_models_without_ray_and_drains_on_ctrl_c(files, tmp_path, smollm2):
    engine = engine_saying(smollm2)
    key = {"authorization": f"Bearer {CLIENT_KEY}"}
    async with (
        region("us-east", smollm2, {"r1": engine}) as east,
        edge_process(fleet_at(east.url, tmp_path), tmp_path) as (process, url, greeting),
        httpx.AsyncClient(base_url=url, timeout=30, headers=key) as http,
    ):
        assert f"us-east ({east.url})" in greeting
        reading = asyncio.create_task(process.stderr.read())
        await ready(http)
        async with asyncio.timeout(10):
            told = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert told[0] == f"us-east at {east.url} answers\n"
        assert told[1].startswith("eu-west at http://127.0.0.1:9 does not answer: ")
        answer = await http.post("/v1/chat/completions", json=ASK)
        assert answer.json()["choices"][0]["message"]["content"] == TEXT
        assert [m["id"] for m in (await http.get("/v1/models")).json()["data"]] == [MODEL]

        engine.script = say(ids_of(smollm2), every_s=0.2)
        slow = asyncio.create_task(http.post("/v1/chat/completions", json=ASK))
        async with asyncio.timeout(5):
            while not engine.stats().running:
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(5):
            assert (await process.stdout.readline()).decode().startswith("Draining: 1 running, up to 60 s.")
        assert (await slow).json()["choices"][0]["message"]["content"] == TEXT
        async with asyncio.timeout(10):
            await process.wait()
        imported = {line.rsplit("|", 1)[-1].strip() for line in (await reading).decode().splitlines()}
        assert "dayzero.gateway.app" in imported
        assert not imported & {"ray", "torch", "vllm"}
        await east.check_nothing_is_left()


def ids_of(frontend):
    return [*frontend._encoder.encode([TEXT], at_start=False)[0].tolist(), frontend.stop_ids[0]]


async def test_an_edge_has_all_regions_for_peers_and_no_replicas(files, smollm2_folder):
    fleet = load(LOCAL)
    gateway = edge_gateway.build(fleet, "edge", files, {MODEL: smollm2_folder, "kimi-k3": None})
    status = gateway.status()
    assert [line["region"] for line in status["regions"]] == [r.name for r in fleet.infrastructure.regions]
    assert status["models"] == [{"model": name, "replicas": []} for name in (MODEL, "kimi-k3")]
    assert not status["ready"]
    tokenizer = (smollm2_folder / "tokenizer.json").read_bytes()
    assert gateway.model(MODEL).vocabulary == hashlib.sha256(tokenizer).hexdigest()
    k3 = gateway.model("kimi-k3")
    assert k3.vocabulary == k3.frontend.vocabulary.digest
    await gateway.stop()


def test_an_edge_makes_what_its_frontends_need_and_no_weights(tmp_path):
    said = []
    folders = edge_gateway.ensure_files(load(LOCAL), tmp_path, said.append, mark="test-edge.files")
    assert folders == {MODEL: tmp_path / "smollm2", "kimi-k3": None}
    assert (tmp_path / "smollm2" / "tokenizer.json").is_file()
    assert not list((tmp_path / "smollm2").glob("*.safetensors"))
    assert said


def test_what_an_edge_lacks_is_said_before_it_listens(files, smollm2_folder):
    fleet = load(LOCAL)
    with pytest.raises(EdgeSetupError, match="name of its own"):
        edge_gateway.build(fleet, "us-east", files, {MODEL: smollm2_folder})
    files.peer_key.unlink()
    with pytest.raises(EdgeSetupError, match="dayzero up"):
        edge_gateway.build(fleet, "edge", files, {MODEL: smollm2_folder})


def test_a_region_has_the_others_for_peers():
    tree = yaml.safe_load(LOCAL.read_text())
    east = tree["infrastructure"]["regions"][0]
    west = {
        "name": "eu-west",
        "http": {"port": 8100, "host": "0.0.0.0"},
        "ray": {"gcs_port": 6400, "dashboard_port": 8300},
    }
    north = {
        "name": "north",
        "http": {"port": 8200, "internal_url": "https://north.internal"},
        "ray": {"gcs_port": 6500, "dashboard_port": 8400},
    }
    tree["infrastructure"]["regions"] = [east, west, north]
    fleet = parse(yaml.safe_dump(tree))
    assert PeerBook(fleet, "us-east", None).urls() == {
        "eu-west": "http://127.0.0.1:8100",
        "north": "https://north.internal",
    }
    assert len(PeerBook(fleet, "edge", None).urls()) == 3


def test_the_fleets_rules_reach_the_gateway():
    tree = yaml.safe_load(LOCAL.read_text())
    tree["policy"]["regions"] = {
        "probe_period_s": 0.25,
        "probe_timeout_s": 0.125,
        "down_after": 5,
        "up_after": 6,
        "spill": {"margin_s": 0.7, "margin_share": 0.5, "max_age_s": 9.0},
        "first_frame_s": 1.5,
        "heartbeat_s": 0.75,
        "lost_after_s": 2.5,
        "first_token_s": 12.0,
        "first_token_factor": 3.0,
    }
    rules = regions_policy(parse(yaml.safe_dump(tree)))
    told = (
        *(rules.probe_period_s, rules.probe_timeout_s, rules.health.down_after, rules.health.up_after),
        *(rules.spill.margin_s, rules.spill.margin_share, rules.spill.max_age_s, rules.first_frame_s),
        *(rules.heartbeat_s, rules.lost_after_s, rules.first_token_s, rules.first_token_factor),
    )
    assert told == (0.25, 0.125, 5, 6, 0.7, 0.5, 9.0, 1.5, 0.75, 2.5, 12.0, 3.0)
