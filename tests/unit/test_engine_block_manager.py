"""The model of vLLM's prefix cache: rules one by one, and properties over random traffic.

What the real engine did is replayed in `tests/engine/test_recordings.py`.
"""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.engine.block_manager import BlockManager, CacheLayout
from dayzero.engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    GroupKind,
    KVLedger,
    LastCopies,
)
from dayzero.engine.simulated_scheduler import BatchLimits, ScheduledRequest, Scheduler
from dayzero.engine.types import pack_ids

ATTENTION = CacheLayout(groups=(GroupKind.ATTENTION,), block_tokens=4, unit_tokens=4, blocks=33)
HYBRID_GROUPS = (GroupKind.STATE, GroupKind.STATE, GroupKind.ATTENTION)
HYBRID = CacheLayout(groups=HYBRID_GROUPS, block_tokens=4, unit_tokens=4, blocks=65)
FINE = CacheLayout(groups=HYBRID_GROUPS, block_tokens=8, unit_tokens=2, blocks=49)
INTERVAL = CacheLayout(
    groups=HYBRID_GROUPS, block_tokens=4, unit_tokens=4, blocks=65, retention_interval_tokens=8
)
DENSE = CacheLayout(
    groups=HYBRID_GROUPS, block_tokens=4, unit_tokens=4, blocks=65, retention_interval_tokens=None
)
LAYOUTS = [ATTENTION, HYBRID, FINE, INTERVAL, DENSE]
MAX_TOKENS = 72


class Cache:
    """One replica's cache with a scheduler over it; `serve` runs requests to their end."""

    def __init__(self, layout, *, batched_tokens=32, sequences=4):
        self.manager = BlockManager(layout=layout)
        limits = BatchLimits(batched_tokens=batched_tokens, sequences=sequences, max_model_tokens=MAX_TOKENS)
        self.scheduler = Scheduler(self.manager, limits)
        self.events = []
        self.preempted = 0

    def serve(self, *prompts, salt="", output=2):
        jobs = []
        for prompt in prompts:
            job = ScheduledRequest(str(len(jobs)), self.manager.sequence(pack_ids(prompt), salt=salt))
            self.scheduler.add(job)
            jobs.append(job)
        left = dict.fromkeys(jobs, output)
        for _ in range(10_000):
            if not self.scheduler.has_work:
                break
            step = self.scheduler.schedule()
            self.preempted += step.preempted
            for job, _ in step.work:
                if not job.is_prefilling:
                    job.sequence.chain.append(900 + left[job])
                    left[job] -= 1
                    if not left[job]:
                        self.scheduler.remove(job)
        assert not self.scheduler.has_work, "the schedule stands still"
        self.events += self.manager.take_events()
        return [job.cached_tokens for job in jobs]

    def hit(self, prompt, **options):
        return self.serve(prompt, **options)[0]


def tokens(count, first=1):
    return np.arange(first, first + count)


def joined(*parts):
    return np.concatenate(parts)


def test_a_cold_cache_gives_nothing_and_a_repeat_all_whole_blocks():
    cache = Cache(ATTENTION)
    assert cache.hit(tokens(30)) == 0
    assert cache.hit(tokens(30)) == 28


def test_the_last_token_is_always_computed():
    cache = Cache(ATTENTION)
    cache.hit(tokens(32))
    assert cache.hit(tokens(32)) == 28


def test_generated_tokens_are_cached_for_the_next_turn():
    cache = Cache(ATTENTION)
    cache.hit(tokens(6), output=7)
    turn = joined(tokens(6), [907, 906, 905, 904, 903, 902, 901], tokens(3, 50))
    assert cache.hit(turn) == 12, "6 + 7 tokens, of which the last generated one was never computed"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_salts_share_nothing(layout):
    cache = Cache(layout)
    cache.hit(tokens(30), salt="a")
    assert cache.hit(tokens(30), salt="b") == 0
    assert cache.hit(tokens(30), salt="a") > 0


def test_the_third_sibling_hits_at_the_junction_that_the_second_left():
    cache = Cache(HYBRID)
    shared = tokens(22)
    siblings = [joined(shared, tokens(6, 100 * i)) for i in range(1, 5)]
    assert [cache.hit(prompt) for prompt in siblings] == [0, 0, 20, 20]
    assert cache.hit(siblings[1]) == 24, "its own tail, rounded down"


def test_without_states_the_second_sibling_hits():
    cache = Cache(ATTENTION)
    siblings = [joined(tokens(22), tokens(6, 100 * i)) for i in range(1, 3)]
    assert [cache.hit(prompt) for prompt in siblings] == [0, 20]


def test_a_finer_unit_moves_the_tail_but_not_the_junction():
    cache = Cache(FINE)
    siblings = [joined(tokens(22), tokens(7, 100 * i)) for i in range(1, 4)]
    assert [cache.hit(prompt) for prompt in siblings] == [0, 0, 16], "junctions stand on blocks of 8"
    assert cache.hit(siblings[0]) == 28, "tails on units of 2"


def test_an_interval_keeps_states_where_chunks_end():
    prompts = [joined(tokens(22), tokens(6, 100 * i)) for i in range(1, 3)]
    near, far = Cache(INTERVAL, batched_tokens=8), Cache(INTERVAL, batched_tokens=32)
    assert [near.hit(prompt) for prompt in prompts] == [0, 16]
    assert [far.hit(prompt) for prompt in prompts] == [0, 0], "no chunk ended in between"


def test_a_state_group_lists_only_the_checkpoints_it_keeps():
    cache = Cache(HYBRID)
    cache.hit(tokens(30))
    stored = [event for event in cache.events if isinstance(event, BlockStored)]
    states = [event for event in stored if event.kind is GroupKind.STATE]
    attention = [event for event in stored if event.kind is GroupKind.ATTENTION]
    assert [len(event.hashes) for event in states] == [1, 1]
    assert sum(len(event.hashes) for event in attention) == 7
    chain = [block_hash for event in attention for block_hash in event.hashes]
    assert {event.hashes[0] for event in states} == {chain[6]}, "the state after 28 tokens"


def test_eviction_takes_the_least_recently_used_tail_first():
    cache = Cache(ATTENTION)  # 32 blocks
    first, second = tokens(41), tokens(41, 200)
    cache.hit(first)
    cache.hit(second)
    cache.hit(first)
    cache.hit(tokens(69, 400))  # 18 blocks: more than the 12 that were never used
    assert cache.hit(second) < 40, "the older one lost its tail"
    removed = [event for event in cache.events if isinstance(event, BlockRemoved)]
    assert removed
    assert all(len(event.hashes) == 1 for event in removed)


def test_nothing_is_removed_before_its_block_is_needed():
    cache = Cache(ATTENTION)
    for i in range(3):
        cache.hit(tokens(30, 100 * i))
    assert not any(isinstance(event, BlockRemoved) for event in cache.events)


def test_clearing_voids_everything_and_says_so_once():
    cache = Cache(HYBRID)
    cache.hit(tokens(30))
    assert cache.manager.clear()
    assert cache.manager.take_events() == (AllBlocksCleared(),)
    assert cache.hit(tokens(30)) == 0


def test_clearing_is_refused_while_blocks_are_held():
    cache = Cache(ATTENTION)
    sequence = cache.manager.sequence(pack_ids(tokens(9)))
    assert cache.manager.allocate(sequence, 9, cache.manager.lookup(sequence))
    assert not cache.manager.clear()


def test_requests_that_outgrow_the_cache_together_are_preempted_and_all_end():
    cache = Cache(ATTENTION)
    cache.serve(*(tokens(28, 100 * i) for i in range(4)), output=40)  # 68 blocks at the end, of 32
    assert cache.preempted > 0
    assert cache.manager.usage == 0
    cache.manager.pool.check_integrity()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_hit_is_admitted_only_if_its_copies_and_new_blocks_fit_too(layout):
    admitted = []
    for others in range(layout.blocks):
        cache = Cache(layout)
        cache.hit(tokens(29), output=1)
        cache.manager.new_step()
        cache.manager.pool.take(others)
        sequence = cache.manager.sequence(pack_ids(tokens(29)))
        hit = cache.manager.lookup(sequence)
        admitted.append(cache.manager.allocate(sequence, 29 - hit.tokens, hit))
    assert admitted[0]
    assert not admitted[-1]
    assert admitted == sorted(admitted, reverse=True), "less room never helps"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"unit_tokens": 3}, "does not divide"),
        ({"groups": (GroupKind.STATE,)}, "needs an attention group"),
        ({"retention_interval_tokens": 6}, "no multiple"),
        ({"groups": (GroupKind.ATTENTION,), "unit_tokens": 2}, "hits land on blocks"),
    ],
)
def test_a_layout_that_no_engine_has_is_refused(wrong, says):
    fields = {"groups": HYBRID_GROUPS, "block_tokens": 4, "unit_tokens": 4, "blocks": 65}
    with pytest.raises(ValueError, match=says):
        CacheLayout(**(fields | wrong))


def test_a_million_tokens_are_hashed_and_looked_up_in_well_under_a_second():
    layout = CacheLayout(groups=HYBRID_GROUPS, block_tokens=1536, unit_tokens=128, blocks=2600)
    manager = BlockManager(layout=layout)
    ids = pack_ids(np.random.default_rng(1).integers(0, 163_840, size=1_000_000))
    began_s = time.perf_counter()
    manager.lookup(manager.sequence(ids))
    assert time.perf_counter() - began_s < 0.5


requests = st.tuples(
    st.integers(0, 2),  # which root it begins with
    st.integers(0, 30),  # tokens of it
    st.integers(0, 3),  # which own part follows
    st.integers(1, 12),  # tokens of it
    st.sampled_from(["", "a"]),
    st.integers(1, 20),  # output
)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.lists(requests, min_size=1, max_size=4), min_size=1, max_size=12))
def test_under_any_traffic_hits_are_real_and_the_cache_stays_sound(layout, batches):
    cache = Cache(layout, batched_tokens=16)
    ledger = KVLedger()
    served = set()  # every (salt, prefix) that was ever computed
    for batch in batches:
        by_salt = {}
        for root, length, own, own_length, salt, output in batch:
            prompt = joined(tokens(length, 1000 * root), tokens(own_length, 5000 + 100 * own))
            by_salt.setdefault((salt, output), []).append(prompt)
        for (salt, output), prompts in by_salt.items():
            for prompt in prompts:  # requests sent together may hit one another
                served |= {(salt, pack_ids(prompt[:end])) for end in range(len(prompt) + 1)}
            hits = cache.serve(*prompts, salt=salt, output=output)
            for prompt, hit in zip(prompts, hits, strict=True):
                assert 0 <= hit < len(prompt)
                assert hit % layout.unit_tokens == 0
                assert (salt, pack_ids(prompt[:hit])) in served
            assert cache.manager.usage == 0
            cache.manager.pool.check_integrity()
    ledger.apply(LastCopies().pass_on(cache.events))
    for group in range(len(layout.groups)):
        assert ledger.resident(group) == cache.manager.pool.resident(group)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 60))
def test_a_repeat_on_a_roomy_cache_hits_its_last_unit(layout, length):
    cache = Cache(layout, batched_tokens=16)
    cache.hit(tokens(length))
    assert cache.hit(tokens(length)) == (length - 1) // layout.unit_tokens * layout.unit_tokens
