"""Engine events in the router's hashes: runs, states, tails, removals, gaps; what cannot be named; engines that lie."""

import msgspec
import numpy as np
import pytest

from dayzero.engine.block_manager import BlockManager, CacheLayout
from dayzero.engine.errors import EngineError
from dayzero.engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    GroupKind,
    KVEventBatch,
    LastCopies,
)
from dayzero.engine.protocol import CacheGroup, EngineInfo
from dayzero.engine.simulated_scheduler import BatchLimits, ScheduledRequest, Scheduler
from dayzero.engine.translation import ChainTranslator, life_of
from dayzero.engine.translation_probe import Verdict, probe
from dayzero.engine.translation_prompts import AdmittedPrompts
from dayzero.engine.types import EngineRequest, Sampling, pack_ids
from dayzero.router.chain import Chain, Namespace, split
from dayzero.router.changes import Cleared, Layout, Life, Removed, Stored, Tier

ATTENTION, STATE = GroupKind.ATTENTION, GroupKind.STATE
IDS = list(range(100, 200))
FINE = Layout(4, 8, (1,), (0,))


def life(layout=FINE):
    return Life(replica="r", incarnation="1", model="m", layout=layout, blocks=64)


def names(ids, unit=4, salt="", lora=None):
    return Chain.of(pack_ids(ids), Namespace("m", unit, salt, lora)).hashes()


def run(hashes, ids, parent=None, block=8, group=1, **more):
    return BlockStored(
        group=group,
        kind=ATTENTION,
        hashes=tuple(hashes),
        parent=parent,
        block_tokens=block,
        token_ids=pack_ids(ids),
        **more,
    )


def state(*hashes, group=0):
    return BlockStored(group=group, kind=STATE, hashes=hashes, parent=None, block_tokens=8)


class Told:
    """A translator that is told events, one batch a call."""

    def __init__(self, layout=FINE):
        self.translator = ChainTranslator(life(layout))
        self.sequence = 5

    def __call__(self, *events, skip=0):
        self.sequence += 1 + skip
        return self.translator.translate(KVEventBatch(sequence=self.sequence, time_s=0.0, events=events))


def request(name, ids, **more):
    return EngineRequest(request_id=name, prompt_ids=pack_ids(ids), sampling=Sampling(max_tokens=1), **more)


def test_a_run_is_named_by_its_tokens_and_the_next_by_its_parent():
    told, chain = Told(), names(IDS)
    assert told(run([11, 12], IDS[:16])) == (Stored(1, chain[1] + chain[3], 2),)
    assert told(run([13], IDS[16:24], parent=12)) == (Stored(1, chain[5], 6),)


def test_salt_and_adapter_come_with_the_first_run_and_are_inherited():
    told, chain = Told(), names(IDS, salt="s", lora="l")
    assert told(run([11], IDS[:8], salt="s", lora="l")) == (Stored(1, chain[1], 2),)
    assert told(run([12], IDS[8:16], parent=11)) == (Stored(1, chain[3], 4),)


def test_a_state_listed_before_its_block_waits_for_it():
    told, chain = Told(), names(IDS)
    changes = told(state(12), run([11, 12], IDS[:16]))
    assert changes == (Stored(1, chain[1] + chain[3], 2), Stored(0, chain[3], 4))
    assert told(state(11)) == (Stored(0, chain[1], 2),)


def test_a_state_that_goes_before_it_had_a_name_is_counted():
    told = Told()
    assert told(state(12), BlockRemoved(group=0, hashes=(12,)), run([11, 12], IDS[:16])) == (
        Stored(1, names(IDS)[1] + names(IDS)[3], 2),
    )
    assert told.translator.unresolved == 1


def test_a_state_keeps_its_name_after_its_block_is_gone():
    told, chain = Told(), names(IDS)
    told(run([11, 12], IDS[:16]), state(12), BlockRemoved(group=1, hashes=(12,)))
    assert [(part.group, part.hashes) for part in told.translator.held()] == [(0, chain[3]), (1, chain[1])]
    assert told(BlockRemoved(group=0, hashes=(12,))) == (Removed(0, chain[3]),)
    assert told(run([13], IDS[16:24], parent=12)) == ()
    assert told.translator.unresolved == 1, "nobody holds the parent any more"


def test_a_partial_tail_is_named_by_the_request_that_stored_it():
    told, chain = Told(), names(IDS)
    told.translator.admit(request("q", IDS[:22]))
    tail = run([77], IDS[16:20], parent=76, block=4, request_id="q")
    assert told(state(77), tail) == (Stored(1, chain[4], 5), Stored(0, chain[4], 5))
    assert told(run([88], IDS[20:24], parent=77, block=4)) == (Stored(1, chain[5], 6),)


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "another"},
        {"request_id": ""},
        {"token_ids": pack_ids(IDS[17:21])},
        {"block_tokens": 8, "token_ids": pack_ids(IDS[16:24])},
    ],
    ids=" ".join,
)
def test_a_partial_tail_that_is_not_certain_is_left_out(changes):
    told = Told()
    told.translator.admit(request("q", IDS[:22]))
    tail = msgspec.structs.replace(run([77], IDS[16:20], parent=76, block=4, request_id="q"), **changes)
    assert told(tail) == ()
    assert told.translator.unresolved == 1


def test_a_tail_knows_its_tenant():
    told = Told()
    told.translator.admit(request("q", IDS[:22], salt="s"))
    tail = run([77], IDS[16:20], parent=76, block=4, request_id="q")
    assert told(tail) == (Stored(1, names(IDS, salt="s")[4], 5),)


def test_prompts_are_kept_only_where_tails_are_partial_and_within_bounds():
    plain = AdmittedPrompts("m", Layout(8, 8, (0,)))
    plain.admit(request("q", IDS[:22]))
    assert plain.tail("q", pack_ids(IDS[16:20])) is None
    prompts = AdmittedPrompts("m", FINE, max_bytes=22 * 4 * 3)
    for name in "abcd":
        prompts.admit(request(name, IDS[:22]))
    known = [name for name in "abcd" if prompts.tail(name, pack_ids(IDS[16:20]))]
    assert known == ["b", "c", "d"]
    for name in "efg":
        prompts.admit(request(name, IDS[:22]))
    assert prompts.tail("b", pack_ids(IDS[16:20])), "a prompt that was hashed weighs nothing"


def test_removals_in_a_row_become_one():
    told, chain = Told(), names(IDS)
    told(run([11, 12, 13], IDS[:24]))
    gone = (BlockRemoved(group=1, hashes=(13,)), BlockRemoved(group=1, hashes=(12,)))
    assert told(*gone, *gone) == (Removed(1, chain[5] + chain[3]),)


def test_tiers_are_told_apart():
    told, chain = Told(), names(IDS)
    told(run([11], IDS[:8]), run([11], IDS[:8], tier=Tier.HOST))
    assert told(BlockRemoved(group=1, hashes=(11,))) == (Removed(1, chain[1]),)
    assert [part.tier for part in told.translator.held()] == [Tier.HOST]
    assert told(run([12], IDS[8:16], parent=11)) == (Stored(1, chain[3], 4),)


def test_after_a_gap_all_is_void_and_old_parents_are_unknown():
    told, chain = Told(), names(IDS)
    told(run([11], IDS[:8]), state(11))
    changes = told(run([12], IDS[8:16], parent=11), run([21], IDS[:8], salt="s"), skip=1)
    assert changes == (Cleared(), Stored(1, names(IDS, salt="s")[1], 2))
    assert told.translator.unresolved == 1
    assert told(run([11], IDS[:8])) == (Stored(1, chain[1], 2),), "stored again, named again"


def test_a_batch_that_came_before_gives_nothing():
    told = Told()
    told(run([11], IDS[:8]))
    told.sequence -= 1
    assert told(BlockRemoved(group=1, hashes=(11,))) == ()
    assert len(told.translator.held()) == 1


def test_clearing_forgets():
    told = Told()
    told(run([11], IDS[:8]), state(11))
    assert told(AllBlocksCleared()) == (Cleared(),)
    assert told.translator.held() == ()


@pytest.mark.parametrize(
    "event",
    [
        run([11, 12], IDS[:8]),
        run([11], IDS[:6], block=6),
        run([11], IDS[:16], block=16),
        run([11], IDS[:8], group=9),
        run([11], IDS[:8], more_than_tokens=True),
        run([], []),
    ],
)
def test_a_run_that_makes_no_sense_is_left_out_and_counted(event):
    told = Told()
    assert told(event) == ()
    assert told.translator.unresolved == len(event.hashes)
    assert told.translator.held() == ()


def test_a_block_that_begins_inside_another_is_left_out():
    told = Told()
    told(run([11], IDS[:4], block=4))
    assert told(run([12], IDS[4:12], parent=11)) == ()
    assert told.translator.unresolved == 1


def test_a_hash_that_takes_another_meaning_is_left_out():
    told = Told()
    told(run([11], IDS[:8]))
    assert told(run([11], IDS[8:16])) == ()
    assert told.translator.unresolved == 1


def test_a_life_is_what_the_running_engine_says():
    groups = (CacheGroup(0, STATE, 8), CacheGroup(1, ATTENTION, 8), CacheGroup(2, STATE, 8))
    info = EngineInfo(
        model="m",
        incarnation="i",
        max_model_tokens=100,
        match_unit_tokens=4,
        cache_groups=groups,
        cache_blocks=64,
        engine="e",
        engine_version="1",
    )
    made = life_of(info, "r")
    assert (made.replica, made.incarnation, made.model, made.blocks) == ("r", "i", "m", 64)
    assert made.layout == Layout(4, 8, (1,), (0, 2))
    uneven = msgspec.structs.replace(info, cache_groups=(*groups, CacheGroup(3, ATTENTION, 16)))
    with pytest.raises(EngineError, match="by load alone"):
        life_of(uneven, "r")


# -- the probe ----------------------------------------------------------------------------------------

LAYOUTS = {
    "attention": CacheLayout(groups=(ATTENTION,), block_tokens=8, unit_tokens=8, blocks=64),
    "hybrid": CacheLayout(groups=(STATE, ATTENTION), block_tokens=8, unit_tokens=8, blocks=64),
    "fine": CacheLayout(groups=(STATE, ATTENTION), block_tokens=8, unit_tokens=4, blocks=64),
}
PROBE = np.arange(47, dtype=np.uint32)


def proof(name, lie=lambda event: event, *, believed=None, salt=""):
    """Serve the probe in two turns by an engine whose events pass through `lie`; what the probe says then."""
    cache = LAYOUTS[name]
    numbered = list(enumerate(cache.groups))
    layout = Layout(
        (believed or cache).unit_tokens,
        (believed or cache).block_tokens,
        tuple(number for number, kind in numbered if kind is ATTENTION),
        tuple(number for number, kind in numbered if kind is STATE),
    )
    translator = ChainTranslator(life(layout))
    manager, copies = BlockManager(layout=cache), LastCopies()
    scheduler = Scheduler(manager, BatchLimits(batched_tokens=64, sequences=1, max_model_tokens=100))
    sequence = 0
    for tokens in (17, len(PROBE)):
        asked = request(str(tokens), PROBE[:tokens])
        translator.admit(asked)
        job = ScheduledRequest(
            asked.request_id, manager.sequence(asked.prompt_ids, salt=salt, request_id=asked.request_id)
        )
        scheduler.add(job)
        while job.is_prefilling:
            scheduler.schedule()
            events = tuple(map(lie, copies.pass_on(manager.take_events())))
            translator.translate(KVEventBatch(sequence=sequence, time_s=0.0, events=events))
            sequence += 1
        scheduler.remove(job)
    chain = Chain.of(pack_ids(PROBE), Namespace("m", layout.unit_tokens))
    return probe(translator, chain, len(PROBE))


def lying(**lies):
    """Attention runs with fields changed by functions of the event; other events pass."""

    def lie(event):
        if not isinstance(event, BlockStored) or event.kind is not ATTENTION:
            return event
        return msgspec.structs.replace(event, **{field: of(event) for field, of in lies.items()})

    return lie


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_honest_engine_passes(name):
    assert proof(name).ok


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("lie", "verdict"),
    [
        (lying(token_ids=lambda e: (np.frombuffer(e.token_ids, "<u4") + 1).tobytes()), Verdict.DIFFERENT),
        (lying(token_ids=lambda e: e.token_ids[4:] + e.token_ids[:4]), Verdict.DIFFERENT),
        (lying(token_ids=lambda _: b""), Verdict.MISSING),
        (lying(block_tokens=lambda _: 16), Verdict.MISSING),
        (lying(hashes=lambda e: e.hashes[1:]), Verdict.MISSING),
        (lying(hashes=lambda e: e.hashes[1:] + e.hashes[:1]), None),
        (lying(hashes=lambda e: tuple(value + 1 for value in e.hashes)), None),
        (lying(parent=lambda _: None), None),
        (lying(salt=lambda _: "another"), Verdict.DIFFERENT),
    ],
    ids=[
        "other ids",
        "shifted ids",
        "no ids",
        "block",
        "a hash less",
        "turned hashes",
        "hashes",
        "parent",
        "salt",
    ],
)
def test_an_engine_that_lies_is_found_out(name, lie, verdict):
    found = proof(name, lie)
    assert not found.ok
    assert verdict in {None, found.verdict}, found.words
    assert "cache group" in found.words


def test_a_believed_block_that_is_not_the_engines_is_found_out():
    finer = CacheLayout(groups=(ATTENTION,), block_tokens=4, unit_tokens=4, blocks=64)
    assert proof("attention", believed=finer).verdict is Verdict.MISSING


@pytest.mark.parametrize("name", ["hybrid", "fine"])
def test_missing_states_are_found_out(name):
    def lie(event):
        return event if event.kind is ATTENTION else msgspec.structs.replace(event, hashes=(1,))

    found = proof(name, lie)
    assert (found.verdict, found.words[:13]) == (Verdict.MISSING, "cache group 0")


def test_a_prompt_of_one_block_proves_nothing():
    with pytest.raises(ValueError, match="16 tokens in units of 4"):
        probe(ChainTranslator(life()), Chain.of(pack_ids(IDS[:15]), Namespace("m", 4)), 15)


def test_a_proof_names_no_token_and_no_hash():
    words = proof("attention", lying(token_ids=lambda e: e.token_ids[4:] + e.token_ids[:4])).words
    assert not any(name.hex() in words for name in split(Chain.of(pack_ids(PROBE), Namespace("m", 8)).joined))
