"""The feed's pure parts: messages, the outbox, the breaker, how much of the stream is kept, and URLs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.router.changes import Cleared, Held, Removed, Stored, Tier
from dayzero.router.feed.breaker import Breaker
from dayzero.router.feed.errors import MessageError, StoreUrlError
from dayzero.router.feed.keys import Keys
from dayzero.router.feed.messages import (
    VERSION,
    Batch,
    Beat,
    Goodbye,
    Hello,
    Mark,
    Snapshot,
    decode,
    decode_snapshot,
    encode,
)
from dayzero.router.feed.outbox import BATCH_BYTES, MAX_WAITING_BYTES, Outbox
from dayzero.router.feed.publisher import MAX_ENTRIES, MAX_STREAM_BYTES, MIN_ENTRIES, entries_kept
from dayzero.router.feed.store import Store
from tests.unit.feed_model import change, hashed, held_of, life

EVERY = (
    Hello("a", "1", 3, 1.5, life()),
    Batch("a", "1", 4, 1.5, (Stored(0, hashed(1, 2), 1), Removed(1, hashed(3), Tier.HOST), Cleared())),
    Beat("a", "1", 4, 1.5),
    Mark("a", "1", 4, 1.5),
    Goodbye("a", "1", 4, 1.5),
)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message):
    assert decode(encode(message)) == message


def test_a_snapshot_comes_back_as_it_was():
    snapshot = Snapshot(life(), 7, held_of([hashed(1), hashed(2)]))
    assert decode_snapshot(encode(snapshot)) == snapshot


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_message_or_a_message_error(raw, versioned):
    raw = VERSION + raw if versioned else raw
    for read in (decode, decode_snapshot):
        try:
            read(raw)
        except MessageError as error:
            assert str(error)


@given(st.sampled_from([encode(message) for message in EVERY]), st.data())
def test_a_message_with_a_changed_byte_is_a_message_or_a_message_error(raw, data):
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = raw[:at] + bytes([data.draw(st.integers(0, 255))]) + raw[at + 1 :]
    try:
        decode(changed)
    except MessageError as error:
        assert str(error)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x02" + encode(EVERY[0])[1:],
        encode(Batch("a", "1", 1, 0.0, (Stored(0, b"fifteen bytes..", 1),))),
        encode(Hello("b", "1", 1, 0.0, life("a"))),
        encode(Beat("a" * 300, "1", 1, 0.0)),
        encode(Beat("a", "1", -1, 0.0)),
        VERSION + msgspec.msgpack.encode(["shout", "a", "1", 1, 0.0]),
        VERSION + b"\x91" * 100_000,
        bytes(9 << 20),
    ],
    ids=range(9),
)
def test_what_is_no_message_of_this_version_is_refused(raw):
    with pytest.raises(MessageError):
        decode(raw)


def test_a_snapshot_whose_depths_do_not_go_with_its_hashes_is_refused():
    with pytest.raises(MessageError):
        decode_snapshot(encode(Snapshot(life(), 1, (Held(0, Tier.GPU, hashed(1, 2), bytes(4)),))))


def test_an_error_holds_nothing_of_what_was_read():
    with pytest.raises(MessageError) as caught:
        decode(VERSION + msgspec.msgpack.encode(["beat", "a", "secret-word", "secret-word", 0.0]))
    assert "secret" not in str(caught.value)


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), max_size=30), st.data())
def test_batches_are_numbered_without_a_hole_and_hold_every_change_in_order(puts, data):
    outbox, told = Outbox(life()), []
    for numbers in puts:
        assert outbox.put([Stored(0, hashed(*numbers), 1)], 1.0)
        if data.draw(st.booleans()):
            outbox.pack()
        if data.draw(st.booleans()):
            for number, raw in outbox.head():
                outbox.sent(number)
                told.append(decode(raw))
    outbox.pack()
    for number, raw in outbox.head():
        outbox.sent(number)
        told.append(decode(raw))
    assert not outbox
    assert [batch.sequence for batch in told] == list(range(1, len(told) + 1))
    assert [what.hashes for batch in told for what in batch.changes] == [hashed(*ns) for ns in puts]


def test_a_batch_is_cut_before_it_grows_long():
    outbox = Outbox(life())
    outbox.put([Stored(0, bytes(16 * 64), 1)] * 500, 1.0)
    outbox.pack()
    sizes = [len(raw) for _, raw in outbox.head()]
    assert len(sizes) > 5
    assert max(sizes) < 1.1 * BATCH_BYTES


def test_an_unsent_batch_is_sent_again_under_its_number():
    outbox = Outbox(life())
    outbox.put([Cleared()], 1.0)
    outbox.pack()
    assert outbox.head() == outbox.head() != []


def test_an_overflow_throws_all_away_skips_a_number_and_goes_on():
    outbox = Outbox(life())
    outbox.put([Cleared()], 1.0)
    outbox.pack()
    before = outbox.sequence
    results = [outbox.put([Stored(0, bytes(1 << 20), 1)], 1.0) for _ in range(5)]
    assert results.count(False) == 1
    outbox.pack()
    (first, *_) = outbox.head()
    assert first[0] > before + 1
    assert outbox.overflows == 1


def test_what_waits_is_bounded_however_much_is_put():
    outbox = Outbox(life())
    for turn in range(300):
        outbox.put([Stored(0, bytes(64 << 10), 1)], 1.0)
        if turn % 7 == 0:
            outbox.pack()
        waiting = sum(len(raw) for _, raw in outbox._packed) + sum(
            len(what.hashes) for what, _ in outbox._changes
        )
        assert waiting <= MAX_WAITING_BYTES


def test_an_open_breaker_lets_one_ask_when_its_pause_is_over():
    breaker = Breaker(random=lambda: 1.0)
    assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert not breaker.allows(0.05)
    assert breaker.allows(0.1)
    assert not breaker.allows(0.1), "one probe at a time"
    breaker.succeeded()
    assert breaker.allows(0.1)
    assert breaker.allows(0.1)


def test_pauses_grow_to_a_bound_and_differ_between_processes():
    for chance, longest_s in ((0.0, 1.0), (1.0, 2.0)):
        breaker, now_s, pauses_s = Breaker(random=lambda chance=chance: chance), 0.0, []
        for _ in range(12):
            assert breaker.allows(now_s)
            breaker.failed(now_s)
            pauses_s.append(breaker.wait_s(now_s))
            now_s += pauses_s[-1]
        assert pauses_s == sorted(pauses_s)
        assert pauses_s[-1] == pytest.approx(longest_s)


def test_a_probe_that_was_cancelled_leaves_the_next_one_to_ask():
    breaker = Breaker(random=lambda: 1.0)
    breaker.failed(0.0)
    assert breaker.allows(0.2)
    breaker.abandoned()
    assert breaker.allows(0.2)


def test_the_stream_is_kept_within_its_bytes_at_the_size_it_has():
    assert entries_kept(0, 0) == MAX_ENTRIES
    assert entries_kept(10_000, 1_000_000) == MAX_ENTRIES
    kept = entries_kept(10_000, 10_000 * (64 << 10))
    assert kept * (64 << 10) <= MAX_STREAM_BYTES
    assert entries_kept(10, 10 << 30) == MIN_ENTRIES


def test_keys_of_regions_and_of_kinds_differ():
    here, there = Keys("us-east"), Keys("eu-west")
    keys = [here.feed, here.wanted, here.roll_call, here.snapshot("a"), here.decision("a"), there.feed]
    assert len(set(keys)) == len(keys)
    assert all(key.startswith("dayzero:1:") for key in keys)


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://h", "redis://", "redis://h:port", "unix://"])
def test_a_url_that_names_no_store_is_refused_with_what_to_write(url):
    with pytest.raises(StoreUrlError, match="unix:///path"):
        Store(url)


def test_a_password_stays_out_of_what_is_said():
    for url in ("redis://me:hunter2@store:6380/1", "unix:///run/v.sock?password=hunter2"):
        assert "hunter2" not in Store(url).where
    with pytest.raises(StoreUrlError) as caught:
        Store("redis://:hunter2@h:port")
    assert "hunter2" not in str(caught.value)


def test_the_model_follows_changes():
    truth = set()
    for what in (Stored(0, hashed(1, 2), 1), Removed(0, hashed(1, 9))):
        change(truth, what)
    assert truth == {hashed(2)}
