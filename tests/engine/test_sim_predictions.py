"""Predicted equals reported on the simulated engine, which is proven equal to vLLM's cache (`test_recordings.py`)."""

import dataclasses
import itertools
import random

import pytest

from dayzero.engine.block_manager import BlockManager, CacheLayout
from dayzero.engine.kv_events import GroupKind, KVEventBatch, LastCopies
from dayzero.engine.simulated_scheduler import BatchLimits, ScheduledRequest, Scheduler
from dayzero.engine.types import pack_ids, unpack_ids
from dayzero.router.changes import Layout, Life
from tests.engine.talks import Followed, Talks

GROUPS = (GroupKind.STATE, GroupKind.STATE, GroupKind.STATE, GroupKind.ATTENTION)
LAYOUTS = {
    "llama": CacheLayout(groups=(GroupKind.ATTENTION,), block_tokens=8, unit_tokens=8, blocks=64),
    "hybrid": CacheLayout(groups=GROUPS, block_tokens=8, unit_tokens=8, blocks=64),
    "hybrid, fine unit": CacheLayout(groups=GROUPS, block_tokens=16, unit_tokens=4, blocks=64),
}
LONGEST_TOKENS = 160
ANSWERS = (1, 2, 3, 9, 17)
LONG_ANSWERS = (9, 17, 40)
REQUESTS = 20_000


class Replica:
    """The simulated cache with a scheduler over it, followed step by step."""

    def __init__(self, layout, *, batched_tokens=64):
        self.manager = BlockManager(layout=layout)
        limits = BatchLimits(batched_tokens=batched_tokens, sequences=4, max_model_tokens=LONGEST_TOKENS)
        self.scheduler = Scheduler(self.manager, limits)
        numbered = list(enumerate(layout.groups))
        self.followed = Followed(
            Life(
                replica="r",
                incarnation="1",
                model="m",
                layout=Layout(
                    layout.unit_tokens,
                    layout.block_tokens,
                    tuple(n for n, kind in numbered if kind is GroupKind.ATTENTION),
                    tuple(n for n, kind in numbered if kind is GroupKind.STATE),
                ),
                blocks=layout.blocks,
            )
        )
        self.preempted = 0
        self._copies = LastCopies()
        self._sequence = itertools.count()
        self._names = itertools.count()
        self._dice = random.Random(0)

    def submit(self, turn):
        request = self.followed.request(str(next(self._names)), turn)
        sequence = self.manager.sequence(request.prompt_ids, salt=request.salt, request_id=request.request_id)
        job = ScheduledRequest(request.request_id, sequence)
        self.scheduler.add(job)
        return job

    def step(self, answers):
        """`answers`: job → tokens still to say. Returns the jobs that ended."""
        step = self.scheduler.schedule()
        self.preempted += step.preempted
        ended = []
        for job, _ in step.work:
            if job.is_prefilling:
                continue
            job.sequence.chain.append(self._dice.randrange(1000))
            answers[job] -= 1
            if not answers[job]:
                del answers[job]
                self.scheduler.remove(job)
                ended.append(job)
        events = self._copies.pass_on(self.manager.take_events())
        if events:
            self.followed.take(KVEventBatch(sequence=next(self._sequence), time_s=0.0, events=events))
        return ended

    def answer(self, turn, job):
        chain = job.sequence.chain
        return unpack_ids(chain.token_bytes(len(turn.ids), len(chain)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_hit_is_predicted(name):
    """20,000 requests a layout, one after the other."""
    replica, talks = Replica(LAYOUTS[name]), Talks(1, LONGEST_TOKENS, ANSWERS, range(1000))
    differences = hits = inside = 0
    for _ in range(REQUESTS):
        turn = talks.next()
        predicted = replica.followed.reusable(turn.ids, turn.salt)
        job = replica.submit(turn)
        answers = {job: turn.answer_tokens}
        while answers:
            replica.step(answers)
        talks.answered(turn, replica.answer(turn, job))
        differences += predicted != job.cached_tokens
        hits += job.cached_tokens > 0
        inside += job.cached_tokens % LAYOUTS[name].block_tokens > 0
    evictions = replica.followed.evictions
    figures = f"{differences} differences, {hits} hits, {inside} inside a block, {evictions} evictions"
    print(f"{name}: {REQUESTS} requests, {figures}")
    assert differences == 0, figures
    assert hits > REQUESTS // 4, figures
    assert evictions > REQUESTS, figures
    assert (inside > REQUESTS // 20) is (name == "hybrid, fine unit"), figures
    replica.followed.check()


@pytest.mark.parametrize("name", LAYOUTS)
def test_between_any_two_steps_of_concurrent_work_the_index_says_what_a_lookup_finds(name):
    """With chunked prefills, shared blocks being written and requests that lose their blocks."""
    layout = dataclasses.replace(LAYOUTS[name], blocks=LAYOUTS[name].blocks * 5 // 8)
    replica, talks = Replica(layout, batched_tokens=48), Talks(2, LONGEST_TOKENS, LONG_ANSWERS, range(1000))
    dice, turns, answers, hits = random.Random(3), {}, {}, 0
    for _ in range(3_000):
        while len(answers) < dice.choice((1, 4, 6)):
            turn = talks.next()
            job = replica.submit(turn)
            turns[job], answers[job] = turn, turn.answer_tokens
        for job in replica.step(answers):
            turn = turns.pop(job)
            talks.answered(turn, replica.answer(turn, job))
        for ids, salt in talks.going:
            found = replica.manager.lookup(replica.manager.sequence(pack_ids(ids), salt=salt)).tokens
            assert replica.followed.reusable(ids, salt) == found
            hits += found > 0
    print(f"{name}: {hits} hits, {replica.preempted} preemptions, {replica.followed.evictions} evictions")
    assert hits > 1_000
    assert replica.preempted > 20
    replica.followed.check()
