"""Replicas of a real region are killed and frozen from outside, in the middle of their work.

Who has no token yet gets an answer from the other replica, who has some gets one error event, everybody else notices
nothing, and the replica is replaced.
"""

import contextlib
import json
import signal
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.e2e.regions import K3, MODEL, ask, frames, wait_until
from tests.engine.vllm_support import needs_vllm

pytestmark = [*needs_vllm, pytest.mark.ray, pytest.mark.slow]

REPLACED_WITHIN_S = 240.0
"""A quiet machine needs 30 s; the figure is printed."""


@dataclass
class SteadyClient:
    """Asks again and again, and notes how it went."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def asking(self, region):
        done = threading.Event()

        def run():
            client = region.client(timeout=120)
            while not done.wait(0.3):
                began_s = time.monotonic()
                try:
                    answer = client.chat.completions.create(**ask("Say yes.", max_tokens=2))
                    assert answer.usage.completion_tokens
                except Exception as error:  # noqa: BLE001 every failure counts
                    self.failures.append(repr(error))
                self.seconds.append(time.monotonic() - began_s)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def long_prompt():
    """About 7,000 tokens that no cache has: seconds of prefill on a CPU."""
    name = uuid.uuid4().hex
    return f"{name} " + "apples and pears and plums and " * 1150


def ask_with_a_long_prompt(region, name, *, stream):
    body = ask(long_prompt(), max_tokens=4, stream=stream)
    return region.post(json.dumps(body), **{"x-request-id": name})


def prefilling(region):
    """The replica that works on a long prompt, once one says so."""
    found = []

    def look():
        found[:] = [name for name, row in region.replicas().items() if row.get("backlog_tokens", 0) > 3000]
        return found

    wait_until(look, 120, region.status)
    return found[0]


def attempts(sink, name):
    """The replicas that were tried for a request, in order, with what went wrong there."""
    spans = sink.of_client(name, {"gateway.request"})
    tried = sorted((s for s in spans if s.name == "gateway.dispatch"), key=lambda s: s.start_s)
    return [(s.attributes["dayzero.replica"], s.attributes.get("error.type")) for s in tried]


def check_replaced(region, figure, victim, since_s):
    """Two replicas again, with a new life in the victim's place."""
    rows = region.wait_for_replicas(2, REPLACED_WITHIN_S, without=frozenset({victim}))
    figure(f"replaced {time.monotonic() - since_s:.1f} s after")
    assert len({row["incarnation"] for row in rows.values()}) == 2


def kill_the_replica(region, name):
    process = region.replica_process(name)
    process.send_signal(signal.SIGKILL)


def kill_the_engine(region, name):
    region.engine_core(name).send_signal(signal.SIGKILL)


def freeze_the_engine(region, name):
    region.engine_core(name).send_signal(signal.SIGSTOP)


@pytest.mark.parametrize(
    "how",
    [(kill_the_replica, True), (freeze_the_engine, False)],
    ids=["its process is killed", "its engine is frozen"],
)
def test_before_its_first_token_a_request_is_tried_on_the_other_replica(real, sink, pool, figure, how):
    hurt, stream = how
    before = real.wait_for_replicas(2, REPLACED_WITHIN_S)
    name = f"patient-{uuid.uuid4()}"
    steady = SteadyClient()
    with steady.asking(real):
        answering = pool.submit(ask_with_a_long_prompt, real, name, stream=stream)
        victim = prefilling(real)
        hurt(real, victim)
        hurt_s = time.monotonic()
        answer = answering.result(timeout=300)
        figure(f"answered by the other {time.monotonic() - hurt_s:.1f} s after")
        check_normal(answer, stream=stream)
        (first, second) = attempts(sink, name)
        assert first == (victim, "EngineDeadError")
        assert second[0] in before
        assert second[0] != victim
        assert second[1] is None
        check_replaced(real, figure, before[victim]["incarnation"], hurt_s)
    assert steady.failures == []
    figure(
        f"meanwhile {len(steady.seconds)} small requests, all answered, the slowest in {max(steady.seconds):.1f} s"
    )


def check_normal(answer, *, stream):
    assert answer.status_code == 200
    if stream:
        events = frames(answer.text)
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert all("error" not in chunk for chunk in chunks)
        assert chunks[-1]["choices"][0]["finish_reason"] in {"length", "stop"}
    else:
        assert answer.json()["usage"]["completion_tokens"] in range(1, 5)


def test_an_engine_that_is_killed_ends_its_streams_with_one_error_and_gives_up_who_waits(
    real, sink, pool, figure
):
    before = real.wait_for_replicas(2, REPLACED_WITHIN_S)
    steady = SteadyClient()
    reading = {}

    def generating():
        rows = real.replicas().values()
        return [row for row in rows if row["in_flight"] and row["running"] and not row["backlog_tokens"]]

    # The first has seconds of prefill before it when the second comes: that one goes to the other replica.
    for _ in range(2):
        name = f"reader-{uuid.uuid4()}"
        reading[name] = pool.submit(read_a_long_answer, real, name)
        wait_until(
            lambda: sum(row["in_flight"] for row in real.replicas().values()) >= len(reading), 30, real.status
        )
    wait_until(lambda: len(generating()) == 2, 60, real.status)
    time.sleep(0.5)  # their first words have reached their readers
    with steady.asking(real):
        patient = f"patient-{uuid.uuid4()}"
        answering = pool.submit(ask_with_a_long_prompt, real, patient, stream=False)
        victim = prefilling(real)
        kill_the_engine(real, victim)
        hurt_s = time.monotonic()
        texts = {name: future.result(timeout=300) for name, future in reading.items()}
        check_normal(answering.result(timeout=300), stream=False)
        figure(f"the one that waited was answered {time.monotonic() - hurt_s:.1f} s after")
        assert next(replica for replica, _ in attempts(sink, patient)) == victim
        assert len(attempts(sink, patient)) == 2
        places = {name: attempts(sink, name) for name in texts}
        assert {tries[0][0] for tries in places.values()} == set(before)
        for name, text in texts.items():
            ((replica, _),) = places[name]
            check_stream(text, cut=replica == victim)
        check_replaced(real, figure, before[victim]["incarnation"], hurt_s)
    assert steady.failures == []
    figure(
        f"meanwhile {len(steady.seconds)} small requests, all answered, the slowest in {max(steady.seconds):.1f} s"
    )


def read_a_long_answer(region, name):
    body = ask(
        f"{name}: tell me of " + "apples and pears and " * 400, max_tokens=700, stream=True, ignore_eos=True
    )
    return region.post(json.dumps(body), **{"x-request-id": name}).text


def check_stream(text, *, cut):
    events = frames(text)
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = [json.loads(event) for event in events[:-1]]
    errors = [chunk for chunk in chunks if "error" in chunk]
    if cut:
        assert errors == chunks[-1:]
        assert errors[0]["error"]["code"] == "engine_dead"
        assert len(chunks) > 2, "it had no token yet"
    else:
        assert errors == []
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_afterwards_the_region_is_as_before(real):
    real.wait_until_idle(30)
    status = real.status()
    assert status["ready"] is True
    assert [model["model"] for model in status["models"]] == [MODEL, K3]
    assert real.command("status").returncode == 0
