"""Recordings of the real engine (see `record_kv.py`), replayed through the block manager and the scheduler.

Everything recorded must come out equal, request by request: cached tokens, and events with their order, groups,
parents, token ids and the identity of hashes.
"""

import itertools
import json
import zlib
from collections import Counter
from pathlib import Path

import pytest

from dayzero.engine.block_manager import BlockManager, CacheLayout
from dayzero.engine.kv_events import BlockRemoved, BlockStored, GroupKind, KVLedger, LastCopies
from dayzero.engine.simulated_scheduler import BatchLimits, ScheduledRequest, Scheduler
from dayzero.engine.types import pack_ids
from tests.engine.recipes import SCENARIOS, Recipe, expand
from tests.engine.talks import Turn

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = [scenario.name for scenario in SCENARIOS]


def load(name):
    return json.loads((RECORDINGS / f"{name}.json").read_text())


class Replay:
    """The simulated cache of a recording's engine, and the names of its hashes in order of appearance."""

    def __init__(self, config):
        self.manager = BlockManager(
            layout=CacheLayout(
                groups=tuple(GroupKind(kind) for kind, _ in config["groups"]),
                block_tokens=config["block_tokens"],
                unit_tokens=config["unit_tokens"],
                blocks=config["blocks"],
                retention_interval_tokens=config["retention_interval_tokens"],
            )
        )
        limits = BatchLimits(
            batched_tokens=config["batched_tokens"],
            sequences=config["sequences"],
            max_model_tokens=config["max_model_tokens"],
        )
        self.scheduler = Scheduler(self.manager, limits)
        self.copies = LastCopies()
        self.ledger = KVLedger()
        self.told = ()
        self.preemptions = 0
        self._names = {}
        self._prompts, self._outputs = [], []

    def run(self, requests):
        """Serve requests sent together; returns their cached tokens and all events."""
        left = {}
        for request in requests:
            recipe = Recipe.from_json(request["recipe"])
            prompt = expand(recipe, self._prompts, self._outputs)
            self._prompts.append(prompt)
            name = str(len(self._prompts))
            sequence = self.manager.sequence(pack_ids(prompt), salt=recipe.salt, request_id=name)
            job = ScheduledRequest(name, sequence)
            self.scheduler.add(job)
            left[job] = list(reversed(request["output"]))
        self._outputs += [request["output"] for request in requests]
        while any(left.values()):
            step = self.scheduler.schedule()
            self.preemptions += step.preempted
            for job, _ in step.work:
                if not job.is_prefilling:
                    job.sequence.chain.append(left[job].pop())
                    if not left[job]:
                        self.scheduler.remove(job)
        events = self.manager.take_events()
        self.told = self.copies.pass_on(events)
        self.ledger.apply(self.told)
        return [job.cached_tokens for job in left], [self._normal(event) for event in events]

    def turns(self, requests):
        """The names and turns of requests that will be run together next."""
        recipes = [Recipe.from_json(request["recipe"]) for request in requests]
        return {
            str(number): Turn(expand(recipe, self._prompts, self._outputs), recipe.salt, 1)
            for number, recipe in enumerate(recipes, len(self._prompts) + 1)
        }

    def _normal(self, event):
        if isinstance(event, BlockRemoved):
            return ["R", event.group, *map(self._name, event.hashes)]
        assert isinstance(event, BlockStored)
        parent = None if event.parent is None else self._name(event.parent)
        hashes = [self._name(block_hash) for block_hash in event.hashes]
        return ["S", event.group, event.block_tokens, parent, zlib.crc32(event.token_ids), hashes]

    def _name(self, block_hash):
        return self._names.setdefault(block_hash, len(self._names))


@pytest.mark.parametrize("name", NAMES)
def test_hits_and_events_are_those_of_the_real_engine(name):
    recording = load(name)
    replay = Replay(recording["config"])
    for batch, group in itertools.groupby(recording["requests"], key=lambda request: request["batch"]):
        requests = list(group)
        cached, events = replay.run(requests)
        assert cached == [request["cached_tokens"] for request in requests], f"hits of batch {batch}"
        assert events == requests[-1]["events"], f"events of batch {batch}"
        replay.manager.pool.check_integrity()
    assert replay.preemptions == recording["config"]["preemptions"]


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_folds_events_to_what_a_lookup_finds(name):
    recording = load(name)
    replay = Replay(recording["config"])
    for _, group in itertools.groupby(recording["requests"], key=lambda request: request["batch"]):
        replay.run(list(group))
    for number in range(len(recording["config"]["groups"])):
        assert replay.ledger.resident(number) == replay.manager.pool.resident(number)


def test_the_recordings_hold_what_they_are_for():
    kinds = Counter()
    for name in NAMES:
        recording = load(name)
        config, requests = recording["config"], recording["requests"]
        assert config["blocks"] <= 64
        kinds["evictions"] += sum(event[0] == "R" for request in requests for event in request["events"])
        kinds["hits"] += sum(request["cached_tokens"] > 0 for request in requests)
        kinds["hits inside a block"] += sum(
            request["cached_tokens"] % config["block_tokens"] > 0 for request in requests
        )
        kinds["preemptions"] += config["preemptions"]
    assert min(kinds[kind] for kind in ("evictions", "hits", "hits inside a block", "preemptions")) > 0, kinds


def test_the_second_sibling_misses_and_the_third_hits():
    requests = load("qwen3_next")["requests"]
    first, second, third = (request["cached_tokens"] for request in requests[:3])
    assert (first, second) == (0, 0)
    assert third == 288, "300 shared tokens, in whole blocks of 32"
