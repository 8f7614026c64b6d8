"""Residency: equal to the plainest model of it, whatever comes; bounded; exact at its edges."""

import time
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dayzero.engine.types import pack_ids
from dayzero.router.chain import Chain, Namespace
from dayzero.router.changes import Cleared, Held, Layout, Life, Removed, Stored, Tier
from dayzero.router.digest import MILESTONES
from dayzero.router.residency import Residency

PLAIN = Layout(4, 4, (0,))
TWO_ATTENTIONS = Layout(4, 4, (0, 1))
HYBRID = Layout(2, 2, (2,), (0, 1))
FINE = Layout(2, 6, (1,), (0, 2))
LAYOUTS = (PLAIN, TWO_ATTENTIONS, HYBRID, FINE)
UNITS = (2, 4)


def life(replica="r", layout=PLAIN, incarnation="1", blocks=1000):
    return Life(replica=replica, incarnation=incarnation, model="m", layout=layout, blocks=blocks)


def prompt(*turns):
    """Prompts of a small tree: each turn is one of a few fixed runs of ids, so that prefixes are shared."""
    return np.concatenate([np.arange(17, dtype=np.uint32) + 100 * turn for turn in turns])


PROMPTS = [prompt(a) for a in range(2)] + [prompt(a, b) for a in range(2) for b in range(2)]
CHAINS = [{unit: Chain.of(pack_ids(ids), Namespace("m", unit)) for unit in UNITS} for ids in PROMPTS]


def by_the_book(layout, held, chain, prompt_tokens, tiers):
    """KIMI_K3 section 2, position by position. `held`: (tier, group) → names."""

    def has(groups, units):
        name = chain.hashes()[units - 1]
        return all(any(name in held.get((tier, group), ()) for tier in tiers) for group in groups)

    step = layout.block_tokens // layout.unit_tokens
    most = min((prompt_tokens - 1) // layout.unit_tokens, len(chain))
    blocks = 0
    while (blocks + 1) * step <= most and has(layout.attention_groups, (blocks + 1) * step):
        blocks += 1
    inside = range(blocks * step + 1, min((blocks + 1) * step, most + 1))
    deepest = max([units for units in inside if has(layout.attention_groups, units)], default=blocks * step)
    if layout.state_groups:
        deepest = max((u for u in range(1, deepest + 1) if has(layout.state_groups, u)), default=0)
    return deepest * layout.unit_tokens


replicas = st.sampled_from(["a", "b", "c"])
tiers = st.sampled_from([Tier.GPU, Tier.HOST])
groups = st.integers(0, 3)
parts = st.tuples(st.integers(0, len(PROMPTS) - 1), st.integers(0, 40), st.integers(1, 6))


class Residencies(RuleBasedStateMachine):
    """The index beside one set a replica, tier and group."""

    def __init__(self):
        super().__init__()
        self.residency = Residency()
        self.lives = {}
        self.held = {}

    def run_of(self, replica, part, group):
        """Part of a prompt's chain, as a replica of that layout would tell of it: names and the first one's depth."""
        number, start, count = part
        layout = self.lives[replica].layout if replica in self.lives else PLAIN
        names = CHAINS[number][layout.unit_tokens].hashes()
        step = layout.block_tokens // layout.unit_tokens
        if group in layout.state_groups or (step > 1 and start % 2):
            return names[start : start + 1], start + 1
        return names[step - 1 :: step][start : start + count], (start + 1) * step

    def is_known(self, replica, group):
        layout = self.lives[replica].layout if replica in self.lives else None
        return layout is not None and group in layout.attention_groups + layout.state_groups

    @rule(replica=replicas, layout=st.sampled_from(LAYOUTS), incarnation=st.sampled_from("123"))
    def begin(self, replica, layout, incarnation):
        new = life(replica, layout, incarnation)
        self.residency.begin(new)
        if self.lives.get(replica) != new:
            self.held[replica] = {}
        self.lives[replica] = new

    @rule(replica=replicas)
    def drop(self, replica):
        self.residency.drop(replica)
        self.lives.pop(replica, None)
        self.held.pop(replica, None)

    @rule(replica=replicas)
    def forget(self, replica):
        self.residency.forget(replica)
        if replica in self.held:
            self.held[replica] = {}

    @rule(replica=replicas)
    def clear(self, replica):
        self.residency.apply(replica, [Cleared()])
        if replica in self.held:
            self.held[replica] = {}

    @rule(replica=replicas, tier=tiers, group=groups, run=st.lists(parts, max_size=4), twice=st.booleans())
    def store(self, replica, tier, group, run, twice):
        changes = []
        for part in run:
            names, units = self.run_of(replica, part, group)
            changes.append(Stored(group, b"".join(names), units, tier))
            if self.is_known(replica, group):
                self.held[replica].setdefault((tier, group), {}).update(dict.fromkeys(names, units))
        self.residency.apply(replica, changes * (1 + twice))

    @rule(replica=replicas, layouts=st.booleans())
    def store_a_whole_prompt(self, replica, layouts):
        """All groups get a prompt at once: hits are seldom by chance alone."""
        if replica in self.lives:
            layout = self.lives[replica].layout
            for group in layout.attention_groups + layout.state_groups:
                for start in range(40):
                    self.store(replica, Tier.GPU, group, [(5 if layouts else 2, start, 1)], twice=False)

    @rule(replica=replicas, tier=tiers, group=groups, part=parts)
    def remove(self, replica, tier, group, part):
        names, _ = self.run_of(replica, part, group)
        self.residency.apply(replica, [Removed(group, b"".join(names), tier)])
        for name in names:
            self.held.get(replica, {}).get((tier, group), {}).pop(name, None)

    @rule(replica=replicas, of=replicas)
    def snapshot(self, replica, of):
        """A replica's own, or, as if it had changed unseen, another's."""
        if replica not in self.lives or of not in self.lives:
            return
        if self.lives[replica].layout != self.lives[of].layout:
            return
        kept = {place: dict(names) for place, names in self.held[of].items()}
        snapshot = [
            Held(group, tier, b"".join(names), b"".join(u.to_bytes(4, "little") for u in names.values()))
            for (tier, group), names in kept.items()
        ]
        self.residency.replace(replica, snapshot)
        self.held[replica] = kept

    @invariant()
    def answers_are_the_books(self):
        assert dict(self.residency.lives) == self.lives
        assert self.residency.unit_sizes() == {one.layout.unit_tokens for one in self.lives.values()}
        for ids, chains in zip(PROMPTS, CHAINS, strict=True):
            for asked in ((Tier.GPU,), (Tier.GPU, Tier.HOST)):
                expected = {
                    name: by_the_book(
                        one.layout, self.held[name], chains[one.layout.unit_tokens], len(ids), asked
                    )
                    for name, one in self.lives.items()
                }
                assert self.residency.reusable(chains, len(ids), asked) == expected

    @invariant()
    def nothing_is_left_behind(self):
        counts = self.residency.counts()
        assert counts.blocks == {name: sum(map(len, places.values())) for name, places in self.held.items()}
        assert (counts.evicted, counts.voided) == (0, {})
        assert self.residency._names == sum(counts.blocks.values())
        tables = {
            place: set().union(*(places.get(place, ()) for places in self.held.values()))
            for place in self.residency._tables
        }
        assert {place: set(table) for place, table in self.residency._tables.items()} == tables

    @invariant()
    def the_digest_tells_where_some_replica_can_resume(self):
        digest = self.residency.digest()
        for chains in CHAINS:
            for unit, chain in chains.items():
                told = [
                    units
                    for units, name in enumerate(chain.hashes(), 1)
                    if any(
                        self.tells(one.layout, self.held[r], name, units, unit)
                        for r, one in self.lives.items()
                    )
                ]
                assert digest.depth_tokens(chain) == max(told, default=0) * unit

    def tells(self, layout, held, name, units, unit):
        every = layout.attention_groups + layout.state_groups
        return (
            layout.unit_tokens == unit
            and all(name in held.get((Tier.GPU, group), ()) for group in every)
            and (bool(layout.state_groups) or units in MILESTONES)
        )


TestResidencies = Residencies.TestCase
TestResidencies.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)


def chain_of(ids, unit=4):
    return Chain.of(pack_ids(ids), Namespace("m", unit))


def stored(ids, group=0, unit=4):
    return Stored(group, chain_of(ids, unit).joined, 1)


def test_the_last_token_is_never_reused():
    residency = Residency()
    residency.begin(life())
    residency.apply("r", [stored(range(16))])
    assert residency.reusable({4: chain_of(range(16))}, 16) == {"r": 12}
    assert residency.reusable({4: chain_of(range(17))}, 17) == {"r": 16}
    assert residency.reusable({4: chain_of([])}, 0) == {"r": 0}
    assert residency.reusable({}, 17) == {"r": 0}, "no chain of its unit was given"


def test_a_hundred_replicas_each_have_their_own_depth():
    residency, ids = Residency(), range(4 * 101)
    for number in range(101):
        residency.begin(life(f"r{number}"))
        residency.apply(f"r{number}", [stored(range(4 * number))])
    expected = {f"r{number}": 4 * min(number, 100) for number in range(101)}
    assert residency.reusable({4: chain_of(ids)}, len(ids)) == expected
    residency.drop("r50")
    residency.begin(life("new"))
    assert residency.reusable({4: chain_of(ids)}, len(ids))["new"] == 0, "a bit used again says nothing old"


def test_lives_that_come_and_go_take_the_same_time_whatever_number_there_is():
    residency = Residency()

    def come_and_go(many):
        started_s = time.process_time()
        for number in range(many):
            residency.begin(life(f"new{number}"))
        for number in range(many):
            residency.drop(f"new{number}")
        return time.process_time() - started_s

    alone_s = come_and_go(500)
    for number in range(4000):
        residency.begin(life(f"r{number}"))
    assert come_and_go(500) < 10 * alone_s + 0.05
    for number in range(0, 4000, 2):
        residency.drop(f"r{number}")
    for number in range(2000):
        residency.begin(life(f"again{number}"))
    assert max(residency._by_number) < 4000, "numbers that are free are used again"


def test_a_life_begun_again_keeps_what_it_has_and_another_does_not():
    residency, chains = Residency(), {4: chain_of(range(17))}
    residency.begin(life())
    residency.apply("r", [stored(range(16))])
    residency.begin(life())
    assert residency.reusable(chains, 17) == {"r": 16}
    residency.begin(life(incarnation="2"))
    assert residency.reusable(chains, 17) == {"r": 0}
    assert residency.counts().blocks == {"r": 0}


@pytest.mark.parametrize(
    "change",
    [
        Stored(7, chain_of(range(8)).joined, 1),
        Stored(0, b"no whole hash", 1),
        Removed(0, chain_of(range(8)).joined),
        Removed(7, b"x" * 16),
    ],
)
def test_what_makes_no_sense_has_no_effect(change):
    residency = Residency()
    residency.begin(life())
    residency.apply("r", [change])
    residency.apply("nobody", [change, Cleared()])
    residency.replace("nobody", [])
    residency.forget("nobody")
    residency.drop("nobody")
    assert residency.counts().blocks == {"r": 0}


@pytest.mark.parametrize("layout", [(0, 4, [0]), (3, 4, [0]), (-4, 4, [0]), (4, 0, [0]), (4, 4, [])])
def test_a_layout_that_cannot_be_is_refused_where_it_is_read(layout):
    fields = dict(zip(("unit_tokens", "block_tokens", "attention_groups"), layout, strict=True))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Layout)


def test_a_snapshot_whose_depths_do_not_fit_its_names_is_left_out():
    residency = Residency()
    residency.begin(life())
    residency.replace("r", [Held(0, Tier.GPU, chain_of(range(8)).joined, b"\x01\x00\x00\x00")])
    assert residency.counts().blocks == {"r": 0}


def test_past_the_bound_the_oldest_go_and_are_counted():
    residency = Residency(max_blocks=100)
    for name in ("a", "b"):
        residency.begin(life(name))
    for number in range(200):
        for name in ("a", "b"):
            residency.apply(name, [stored([number] * 4)])
    counts = residency.counts()
    assert sum(counts.blocks.values()) <= 100
    assert counts.evicted + sum(counts.blocks.values()) == 400
    assert residency.reusable({4: chain_of([199] * 5)}, 5) == {"a": 4, "b": 4}
    assert residency.reusable({4: chain_of([0] * 5)}, 5) == {"a": 0, "b": 0}


def test_claims_far_past_what_a_cache_can_hold_are_void_and_told():
    residency = Residency()
    residency.begin(life(blocks=50))
    for number in range(50):
        residency.apply("r", [stored([number] * 4)])
    assert residency.counts().voided == {}
    for number in range(50, 200):
        residency.apply("r", [stored([number] * 4)])
    counts = residency.counts()
    assert counts.voided == {"r": 1}
    assert counts.blocks["r"] < 150
    assert residency.reusable({4: chain_of([0] * 5)}, 5) == {"r": 0}


def test_memory_stays_level_under_ever_new_prompts():
    """A hundred times what the index may hold passes through it."""
    residency = Residency(max_blocks=2_000)
    residency.begin(life(blocks=10**9))
    space, peaks = Namespace("m", 4), []
    tracemalloc.start()
    try:
        for number in range(2_000):
            ids = pack_ids(np.arange(400, dtype=np.uint32) + 1000 * number)
            residency.apply("r", [Stored(0, Chain.of(ids, space).joined, 1)])
            if number in (200, 1_999):
                peaks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert residency.counts().evicted >= 190_000
    assert peaks[1] < 1.5 * peaks[0]


def test_a_name_twice_in_one_change_counts_once():
    residency = Residency()
    residency.begin(life())
    chain = Chain.of(pack_ids(PROMPTS[0]), Namespace("m", 4))
    first = bytes(chain.hashes()[0])
    residency.apply("r", [Stored(0, first + first, 1)])
    assert residency.counts().blocks == {"r": 1}
    residency.apply("r", [Removed(0, first + first)])
    assert residency.counts().blocks == {"r": 0}
