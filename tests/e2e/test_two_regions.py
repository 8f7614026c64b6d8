"""Both regions with real engines: a request goes where its prefix is cached, and goes on when the store or a gateway dies."""

import collections
import json
import signal
import statistics
import threading
import time
import uuid

import httpx
import pytest

from tests.e2e.regions import K3, wait_until
from tests.e2e.talks import BLOCK_TOKENS, Talk, replica_of, settle
from tests.engine.vllm_support import needs_vllm

pytestmark = [*needs_vllm, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def east(both_real):
    region = both_real["us-east"]
    wait_until(lambda: len(region.replicas()) == 2, 60, region.status)
    region.wait_until_exact(30)
    return region


def predicted_and_real(talk):
    """Cached tokens as the router predicted them and as the engine reported them, turn by turn."""
    attempts = [decision["attempts"][-1] for decision in talk.decisions()]
    return [(attempt["predicted_cached_tokens"], attempt["cached_tokens"]) for attempt in attempts]


def test_up_starts_both_regions_and_each_sees_the_other(both_real, figure):
    figure(f"dayzero up, both regions: {both_real['us-east'].up_s:.1f} s")
    assert [len(both_real[name].replicas()) for name in ("us-east", "eu-west")] == [2, 1]
    for here, there in (("us-east", "eu-west"), ("eu-west", "us-east")):
        wait_until(lambda: both_real[here].status()["regions"][0]["up"], 30)  # noqa: B023 within the round
        (peer,) = both_real[here].status()["regions"]
        assert peer["region"] == there
        assert 0 < peer["round_trip_ms"] < 500
        assert all(row.get("no_affinity") is None for row in both_real[here].replicas().values())
        assert Talk(both_real[here], words=10).say(max_tokens=4).completion_tokens
    us_east, eu_west = both_real["us-east"], both_real["eu-west"]
    assert us_east.key == eu_west.key
    assert us_east.replicas().keys().isdisjoint(eu_west.replicas())
    peer_key = us_east.folder.fleet.peer_key.read_text().strip()
    refused = httpx.get(f"{us_east.url}/v1/models", headers={"authorization": f"Bearer {peer_key}"})
    assert refused.status_code == 403, "it is for what regions ask one another"
    shown = both_real["us-east"].command("status")
    assert shown.returncode == 0, shown.stdout
    assert "eu-west: ready" in shown.stdout
    assert "to eu-west: up" in shown.stdout


def test_each_turn_goes_to_the_replica_that_holds_the_ones_before(east, figure):
    talks = [Talk(east) for _ in range(8)]
    for talk in talks:  # side by side, so that talks compete for the replicas between a talk's turns
        talk.say()
        settle(east)
    for _ in range(2):
        for talk in talks:
            talk.say()
        settle(east)
    homes = collections.Counter()
    for talk in talks:
        replicas = {replica_of(decision) for decision in talk.decisions()}
        assert len(replicas) == 1, "a talk stayed where its cache is"
        homes.update(replicas)
        for before, turn in zip(talk.turns, talk.turns[1:], strict=False):
            # All whole blocks of the prompt before; those of its answer too, where the template repeats it unchanged.
            assert (
                before.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS <= turn.cached_tokens < turn.prompt_tokens
            )
            assert turn.cached_tokens % BLOCK_TOKENS == 0
        for predicted, real in predicted_and_real(talk)[1:]:
            assert predicted == real
    assert set(homes) == set(east.replicas()), "different talks spread"
    figure(f"8 talks of 3 turns on {dict(homes)}")


def test_a_shared_system_prompt_is_not_found_by_another_tenant(east):
    system = f"Rules {uuid.uuid4()}: " + "be kind and brief and exact, " * 30
    first = Talk(east, system=system)
    first.say()
    settle(east)
    assert Talk(east, system=system).say().cached_tokens > 4 * BLOCK_TOKENS, "its own tenant finds it"
    settle(east)
    for cached in (
        False,
        True,
    ):  # the first of another tenant finds nothing, its second what the first has left
        stranger = Talk(east, system=system + str(uuid.uuid4()), key=east.second_key)
        turn = stranger.say()
        assert (turn.cached_tokens > 4 * BLOCK_TOKENS) is cached
        assert predicted_and_real(stranger) == [(turn.cached_tokens, turn.cached_tokens)]
        settle(east)


def test_a_decision_can_be_explained_and_holds_no_text(east):
    talk = Talk(east, system="a secret word")
    talk.say()
    settle(east)
    turn = talk.say(prompt_cache_key="my session")
    shown = east.command("explain", turn.request_id, "--json")
    assert shown.returncode == 0, shown.stderr
    (record,) = json.loads(shown.stdout)["decisions"]
    (attempt,) = record["attempts"]
    assert attempt["replica"] in east.replicas()
    assert attempt["predicted_cached_tokens"] == attempt["cached_tokens"] == turn.cached_tokens > 0
    assert attempt["choice"]["target"] == "us-east"
    for candidate in attempt["candidates"]:
        assert candidate["total_s"] == pytest.approx(sum(candidate["parts"].values()), abs=1e-6)
    assert "secret" not in shown.stdout
    table = east.command("explain", turn.request_id)
    assert table.returncode == 0
    assert attempt["replica"] in table.stdout


class Steady:
    """A client that asks small things one after another, noting each answer's time and every failure."""

    def __init__(self, region):
        self._region = region
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds, self.failures = [], []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _run(self):
        while not self._done.wait(0.05):
            try:
                self.seconds.append(Talk(self._region, words=20).say(max_tokens=2).seconds)
            except Exception as error:  # noqa: BLE001 every failure counts
                self.failures.append(repr(error))


def test_no_request_is_lost_or_held_up_while_valkey_is_killed_frozen_or_empty(east, figure):
    talk = Talk(east)
    talk.say()
    settle(east)
    with Steady(east) as before:
        time.sleep(4)
    with Steady(east) as during:
        east.store_server().send(signal.SIGSTOP)
        time.sleep(4)
        assert talk.say().cached_tokens > 0, "what was known is still known"
        east.store_server().send(signal.SIGCONT)
        time.sleep(1)
        killed = east.store_server()
        killed.send(signal.SIGKILL)
        wait_until(lambda: east.store_answers() and east.store_server().pid != killed.pid, 30)
        time.sleep(2)
    assert before.failures == during.failures == []
    east.wait_until_exact(20)
    settle(east)
    assert talk.say().cached_tokens >= talk.turns[-2].prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    medians = [statistics.median(each.seconds) * 1000 for each in (before, during)]
    figure(
        f"median answer {medians[0]:.0f} ms before, {medians[1]:.0f} ms while Valkey was frozen, killed and empty; "
        f"slowest {max(before.seconds) * 1000:.0f} and {max(during.seconds) * 1000:.0f} ms"
    )


def test_a_gateway_that_starts_again_knows_every_cache_within_a_second_of_following(east, figure):
    talk = Talk(east)
    talk.say()
    settle(east)
    held = {name: row["cached_blocks"] for name, row in (east.replicas() | east.replicas(K3)).items()}
    old = east.gateway_process()
    old.kill()
    old.wait(10)

    def back():
        try:
            return "feed" in east.status() and east.replicas()
        except (AssertionError, OSError):
            return False

    wait_until(back, 120)
    exact_s = east.wait_until_exact(10)
    uptime_s = east.status()["gateway"]["uptime_s"]
    known = {name: one["blocks"] for name, one in east.status()["feed"]["replicas"].items()}
    settle(east)
    assert set(known) == set(held)
    turn = talk.say()
    assert turn.cached_tokens >= talk.turns[0].prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    figure(f"exact {exact_s:.2f} s after its first status, {uptime_s:.1f} s after it was made")
