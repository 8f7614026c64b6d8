"""Reading vLLM's KV events: translation, gaps, replay and slow readers, over real sockets and a publisher of ours."""

import asyncio
import importlib.util
from contextlib import suppress

import msgspec
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.errors import EngineProtocolError
from dayzero.engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    GroupKind,
    KVLedger,
)
from dayzero.engine.types import unpack_ids
from dayzero.router.changes import Tier

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("zmq") is None, reason="pyzmq comes with the engine lock"
)

if importlib.util.find_spec("zmq") is not None:
    import zmq
    import zmq.asyncio

    from dayzero.serving.engines.vllm_kv_events import KVEventReader, Subscription
    from dayzero.serving.engines.vllm_kv_wire import Translator

KINDS = {0: GroupKind.ATTENTION, 1: GroupKind.STATE}


def stored(*hashes, parent=None, tokens=None, block=4, **more):
    ids = list(range(block * len(hashes))) if tokens is None else tokens
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": block,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*hashes, group=None):
    event = {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}
    return event if group is None else event | {"group_idx": group}


def payload(*events) -> bytes:
    return msgspec.msgpack.encode([1700000000.5, list(events), 0])


def translated(*events):
    return Translator(KINDS).translate(3, payload(*events)).events


def test_a_stored_run_keeps_hashes_parent_tokens_and_salt():
    wire = stored(11, 12, parent=None, extra_keys=[["tenant-salt"], None], group_idx=0)
    batch = Translator(KINDS).translate(3, payload(wire))
    (event,) = batch.events
    assert (batch.sequence, batch.time_s) == (3, 1700000000.5)
    assert (event.group, event.kind, event.hashes, event.parent) == (0, GroupKind.ATTENTION, (11, 12), None)
    assert unpack_ids(event.token_ids).tolist() == list(range(8))
    assert (event.block_tokens, event.salt, event.tier) == (4, "tenant-salt", Tier.GPU)


def test_a_state_group_keeps_hashes_and_no_tokens():
    (event,) = translated(stored(7, parent=6, tokens=[1, 2, 3, 4], group_idx=1, kv_cache_spec_kind="mamba"))
    assert (event.kind, event.hashes, event.parent, event.token_ids) == (GroupKind.STATE, (7,), 6, b"")


def test_a_lora_name_is_no_salt():
    (event,) = translated(stored(1, lora_name="adapter", extra_keys=[["adapter", "salt"]]))
    assert event.salt == "salt"
    (event,) = translated(stored(1, lora_name="adapter", extra_keys=[["adapter"]]))
    assert event.salt == ""


def test_a_run_says_whose_it_is_and_whether_more_than_tokens_counts():
    (event,) = translated(stored(1, session_id="request-1", lora_name="adapter", extra_keys=[["adapter"]]))
    assert (event.request_id, event.lora, event.more_than_tokens) == ("request-1", "adapter", False)
    (event,) = translated(stored(1, 2, extra_keys=[["salt"], [["picture", 3]]]))
    assert (event.request_id, event.salt, event.more_than_tokens) == ("", "salt", True)


def test_hashes_given_as_bytes_are_cut_to_their_low_64_bits():
    (event,) = translated(stored(bytes(24) + (5).to_bytes(8, "big"), parent=bytes(31) + b"\x09"))
    assert (event.hashes, event.parent) == ((5,), 9)


def test_the_last_copy_of_a_hash_is_what_counts():
    translator = Translator(KINDS)
    translator.translate(0, payload(stored(5), stored(5)))
    assert translator.translate(1, payload(removed(5))).events == ()
    assert translator.translate(2, payload(removed(5))).events == (BlockRemoved(group=0, hashes=(5,)),)
    assert translator.translate(3, payload(removed(5))).events == ()


def test_clearing_forgets_copies_too():
    translator = Translator(KINDS)
    cleared = translator.translate(0, payload(stored(5), stored(5), {"type": "AllBlocksCleared"}))
    assert cleared.events[-1] == AllBlocksCleared()
    translator.translate(1, payload(stored(5)))
    assert translator.translate(2, payload(removed(5))).events == (BlockRemoved(group=0, hashes=(5,)),)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x80", msgspec.msgpack.encode([0.0, [{"type": "NewKind"}]]), payload(stored("x"))],
)
def test_bytes_of_another_shape_are_refused(data):
    with pytest.raises(EngineProtocolError):
        Translator(KINDS).translate(0, data)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_translate_or_be_refused(data):
    with suppress(EngineProtocolError):
        assert Translator(KINDS).translate(7, data).sequence == 7


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 4)), max_size=60))
def test_folded_events_are_the_hashes_with_a_copy_left(steps):
    """Physical copies come and go as vLLM's pool would; the ledger holds a hash while any copy is there."""
    translator, ledger = Translator({}), KVLedger()
    copies: dict[tuple[int, int], int] = {}
    for sequence, (store, group, value) in enumerate(steps):
        key = (group, value)
        if store:
            copies[key] = copies.get(key, 0) + 1
            wire = stored(value, group_idx=group)
        elif copies.get(key):
            copies[key] -= 1
            wire = removed(value, group=group)
        else:
            continue
        ledger.apply(translator.translate(sequence, payload(wire)).events)
    for group in range(4):
        assert ledger.resident(group) == {value for (g, value), n in copies.items() if g == group and n}


# -- the reader ---------------------------------------------------------------------------------------


class Publisher:
    """What vLLM's side does: PUB of numbered batches, ROUTER that replays those it still holds."""

    def __init__(self, folder):
        self.context = zmq.asyncio.Context()
        self.events, self.replay = f"ipc://{folder}/kv", f"ipc://{folder}/replay"
        self._pub = self.context.socket(zmq.XPUB)
        self._pub.bind(self.events)
        self._router = self.context.socket(zmq.ROUTER)
        self._router.bind(self.replay)
        self.held: dict[int, bytes] = {}
        self.replays = 0
        self._next = 0
        self._task = asyncio.create_task(self._serve())

    async def subscribed(self):
        await self._pub.recv()  # XPUB hands a subscription over as a message

    async def publish(self, *events, send=True, hold=True):
        sequence, self._next = self._next, self._next + 1
        if hold:
            self.held[sequence] = payload(*events)
        if send:
            await self._pub.send_multipart([b"", sequence.to_bytes(8, "big"), payload(*events)])

    async def _serve(self):
        while True:
            client, empty, start = await self._router.recv_multipart()
            self.replays += 1
            for sequence, data in sorted(self.held.items()):
                if sequence >= int.from_bytes(start, "big"):
                    await self._router.send_multipart([client, empty, b"", sequence.to_bytes(8, "big"), data])
            await self._router.send_multipart([client, empty, b"", (-1).to_bytes(8, "big", signed=True), b""])

    async def close(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.context.destroy(linger=0)


@pytest_asyncio.fixture
async def publisher(tmp_path_factory):
    publisher = Publisher(tmp_path_factory.mktemp("z"))
    yield publisher
    await publisher.close()


@pytest_asyncio.fixture
async def reader(publisher):
    reader = KVEventReader(publisher.events, publisher.replay, KINDS)
    reader.start()
    await publisher.subscribed()
    yield reader
    await reader.close()


async def take(subscription, count):
    async with asyncio.timeout(5):
        return [await anext(subscription) for _ in range(count)]


async def test_every_reader_gets_every_batch_and_the_ledger_follows(publisher, reader):
    first, second = reader.subscribe(), reader.subscribe()
    await publisher.publish(stored(1, 2), stored(2, group_idx=1))
    await publisher.publish(removed(1))
    batches = await take(first, 2)
    assert await take(second, 2) == batches
    assert [batch.sequence for batch in batches] == [0, 1]
    assert reader.ledger.counts() == {0: 1, 1: 1}


async def test_batches_published_before_the_first_that_arrives_are_replayed(publisher, reader):
    subscription = reader.subscribe()
    await publisher.publish(stored(1), send=False)
    await publisher.publish(stored(2, parent=1))
    assert [batch.sequence for batch in await take(subscription, 2)] == [0, 1]
    assert reader.ledger.resident(0) == {1, 2}
    assert reader.lost_batches == 0


async def test_a_gap_is_filled_by_replay_in_order_and_each_batch_once(publisher, reader):
    subscription = reader.subscribe()
    await publisher.publish(stored(1))
    for value in (2, 3):
        await publisher.publish(stored(value), send=False)
    await publisher.publish(stored(4))
    await publisher.publish(stored(5))
    assert [batch.sequence for batch in await take(subscription, 5)] == [0, 1, 2, 3, 4]
    assert reader.ledger.resident(0) == {1, 2, 3, 4, 5}
    assert publisher.replays == 1


async def test_what_replay_no_longer_holds_is_lost_and_seen_as_a_gap(publisher, reader):
    subscription = reader.subscribe()
    await publisher.publish(stored(1))
    await publisher.publish(stored(2), send=False, hold=False)
    await publisher.publish(stored(3), send=False)
    await publisher.publish(stored(4))
    assert [batch.sequence for batch in await take(subscription, 2)] == [0, 3]
    assert reader.lost_batches == 2
    assert reader.ledger.resident(0) == {4}, "what was resident before the gap is unknown"


async def test_a_slow_reader_sees_a_gap_and_a_quick_one_does_not():
    slow, quick = Subscription(capacity=2), Subscription()
    translator = Translator(KINDS)
    for sequence in range(5):
        batch = translator.translate(sequence, payload(stored(sequence)))
        slow.put(batch)
        quick.put(batch)
    assert [batch.sequence for batch in await take(slow, 2)] == [3, 4]
    assert [batch.sequence for batch in await take(quick, 5)] == [0, 1, 2, 3, 4]


async def test_closing_ends_readers_that_wait_and_those_that_come_late(publisher, reader):
    subscription = reader.subscribe()
    waiting = asyncio.create_task(take(subscription, 1))
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await waiting
    assert [batch async for batch in reader.subscribe()] == []


def test_events_are_the_seams_own_types():
    (event,) = translated(stored(1, group_idx=0))
    assert isinstance(event, BlockStored)
