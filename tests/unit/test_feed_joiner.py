"""The joiner: exact or void, never wrong, whatever becomes of the messages on their way."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.router.changes import Cleared, Removed, Stored
from dayzero.router.feed.joiner import (
    MAX_KEPT_BYTES,
    RETURNS_AFTER,
    Apply,
    Ask,
    Begin,
    Drop,
    Fetch,
    Forget,
    Joiner,
    Replace,
)
from dayzero.router.feed.messages import Batch, Beat, Goodbye, Hello, Mark, Snapshot
from tests.unit.feed_model import SetIndex, change, hashed, held_of, life


class Replica:
    """One life: what it published after each batch, and the messages that tell of it."""

    def __init__(self, incarnation):
        self.life = life(incarnation=incarnation)
        self.after = [frozenset()]

    @property
    def sequence(self):
        return len(self.after) - 1

    def say(self, kind, *rest):
        return kind("a", self.life.incarnation, self.sequence, 0.0, *rest)

    def batch(self, what):
        truth = set(self.after[-1])
        change(truth, what)
        self.after.append(frozenset(truth))
        return self.say(Batch, (what,))

    def snapshot(self):
        return Snapshot(self.life, self.sequence, held_of(self.after[-1]))


class Gateway:
    def __init__(self):
        self.joiner = Joiner()
        self.index = SetIndex()

    def do(self, actions):
        """Follows the actions; answers whether a snapshot was asked for or is to be fetched."""
        for action in actions:
            match action:
                case Begin(of):
                    self.index.begin(of)
                case Apply(changes):
                    self.index.apply("a", changes)
                case Replace(held):
                    self.index.replace("a", held)
                case Forget():
                    self.index.forget("a")
                case Drop():
                    if "a" in self.index.lives:
                        self.index.drop("a")
        return {type(action) for action in actions} & {Ask, Fetch}

    def hear(self, *messages):
        return set().union(*(self.do(self.joiner.push(message)) for message in messages))

    def fetch(self, snapshot):
        return self.do(self.joiner.join(snapshot))

    @property
    def believed(self):
        return frozenset(self.index.held.get("a", ()))


def exact_gateway(replica):
    gateway = Gateway()
    gateway.hear(replica.say(Hello, replica.life))
    gateway.fetch(replica.snapshot())
    assert gateway.joiner.exact
    return gateway


def forged(replica, kind, sequence):
    rest = {Hello: (replica.life,), Batch: ((Stored(0, hashed(7), 1),),)}.get(kind, ())
    return kind("a", replica.life.incarnation, sequence, 0.0, *rest)


numbers = st.integers(0, 12)
changes = st.one_of(
    st.lists(numbers, min_size=1, max_size=4).map(lambda ns: Stored(0, hashed(*ns), 1)),
    st.lists(numbers, min_size=1, max_size=4).map(lambda ns: Removed(0, hashed(*ns))),
    st.just(Cleared()),
)
steps = st.one_of(
    st.tuples(st.just("batch"), changes),
    st.tuples(st.just("batch"), changes),
    st.sampled_from([("hello",), ("beat",), ("introduce",), ("restart",), ("goodbye",), ("fetch",)]),
    st.tuples(st.just("deliver"), st.sampled_from(["next", "next", "next", "lose", "twice", "late", "old"])),
    st.tuples(st.just("deliver"), st.sampled_from(["next", "next", "next", "lose", "twice", "late", "old"])),
    st.tuples(st.just("forge"), st.sampled_from([Beat, Mark, Hello, Batch]), st.integers(1 << 20, 1 << 62)),
)


@given(st.lists(steps, max_size=80), st.data())
def test_any_loss_copy_and_disorder_ends_in_the_truth_or_in_void_and_asked(script, data):
    lives = [Replica("1")]
    gateway, wire, seen, stored = Gateway(), [], [], []
    waits = False

    def check():
        joiner = gateway.joiner
        if joiner.exact:
            (of,) = (one for one in lives if one.life.incarnation == joiner.incarnation)
            assert gateway.believed == of.after[joiner.sequence]
        else:
            assert gateway.believed == frozenset()
            if joiner.incarnation is not None and not joiner.gone:
                assert waits, "void, and nobody was asked"

    def hear(message):
        nonlocal waits
        waits |= bool(gateway.hear(message))
        seen.append(message)
        check()

    def fetch():
        nonlocal waits
        # What lies there may be older: a frozen store may take in an old snapshot last.
        if stored:
            waits |= bool(gateway.fetch(data.draw(st.sampled_from(stored))))
            if gateway.joiner.exact:
                waits = False
        check()

    for step in script:
        replica = lives[-1]
        match step:
            case ("batch", what):
                wire.append(replica.batch(what))
            case ("hello",):
                wire.append(replica.say(Hello, replica.life))
            case ("beat",):
                wire.append(replica.say(Beat))
            case ("introduce",):
                stored.append(replica.snapshot())
                wire += [replica.say(Hello, replica.life), replica.say(Mark)]
            case ("restart",):
                lives.append(Replica(str(len(lives) + 1)))
            case ("goodbye",):
                wire.append(replica.say(Goodbye))
            case ("fetch",):
                fetch()
            case ("forge", kind, sequence):
                # Not through `seen`: it is said once.
                waits |= bool(gateway.hear(forged(replica, kind, sequence)))
                check()
            case ("deliver", "old") if seen:
                hear(data.draw(st.sampled_from(seen)))
            case ("deliver", how) if wire:
                at = data.draw(st.integers(0, len(wire) - 1)) if how == "late" else 0
                message = wire.pop(at)
                if how != "lose":
                    hear(message)
                if how == "twice":
                    hear(message)

    # From here on nothing is lost any more, and the living replica answers.
    replica = lives[-1]
    for _ in range(RETURNS_AFTER + 1):
        hear(replica.say(Beat))
    hear(replica.say(Hello, replica.life))
    hear(replica.say(Mark))
    waits |= bool(gateway.fetch(replica.snapshot()))
    check()
    hear(replica.batch(Stored(0, hashed(99), 1)))
    assert gateway.joiner.exact
    assert gateway.believed == replica.after[-1]


@settings(max_examples=500)
@given(
    st.lists(changes, min_size=1, max_size=6),
    st.lists(
        st.tuples(st.sampled_from(["batch", "batch", "beat", "snapshot"]), st.integers(0, 6)), max_size=14
    ),
)
def test_one_lifes_messages_and_snapshots_in_any_order_never_make_a_wrong_residency(whats, script):
    replica, gateway = Replica("1"), Gateway()
    batches, snapshots, beats = [], [replica.snapshot()], [replica.say(Beat)]
    for what in whats:
        batches.append(replica.batch(what))
        snapshots.append(replica.snapshot())
        beats.append(replica.say(Beat))
    gateway.hear(beats[0])
    for what, at in script:
        if what == "batch":
            gateway.hear(batches[at % len(batches)])
        elif what == "beat":
            gateway.hear(beats[at % len(beats)])
        else:
            gateway.fetch(snapshots[at % len(snapshots)])
        if gateway.joiner.exact:
            assert gateway.believed == replica.after[gateway.joiner.sequence]
        else:
            assert gateway.believed == frozenset()


@given(
    st.lists(changes, max_size=4),
    st.lists(changes, max_size=4),
    st.lists(
        st.tuples(st.sampled_from([Beat, Mark, Hello, Batch]), st.integers(1 << 20, 1 << 62)), min_size=1
    ),
)
def test_after_false_numbers_one_introduction_makes_it_exact_again(before, after, lies):
    replica = Replica("1")
    gateway = exact_gateway(replica)
    for what in before:
        gateway.hear(replica.batch(what))
    waits = gateway.hear(*(forged(replica, *lie) for lie in lies))
    assert waits, "void, and nobody was asked"
    assert gateway.believed == frozenset()
    gateway.hear(*(replica.batch(what) for what in after))
    snapshot = replica.snapshot()
    gateway.hear(replica.say(Hello, replica.life), replica.say(Mark))
    gateway.fetch(snapshot)
    gateway.hear(replica.batch(Stored(0, hashed(99), 1)))
    assert gateway.joiner.exact
    assert gateway.believed == replica.after[-1]


def test_a_lower_number_than_was_heard_voids_what_a_false_snapshot_said():
    replica = Replica("1")
    gateway = Gateway()
    gateway.hear(replica.say(Hello, replica.life))
    gateway.fetch(Snapshot(replica.life, 1 << 61, held_of([hashed(7)])))
    assert gateway.believed == {hashed(7)}
    assert gateway.hear(replica.say(Beat)) == {Ask}
    assert gateway.believed == frozenset()


def test_a_batch_that_comes_twice_changes_nothing():
    replica = Replica("1")
    gateway = exact_gateway(replica)
    stored = replica.batch(Stored(0, hashed(1), 1))
    assert gateway.hear(stored, replica.batch(Removed(0, hashed(1))), stored) == set()
    assert gateway.joiner.exact
    assert gateway.believed == frozenset()


def test_a_late_batch_does_not_spoil_what_is_kept():
    replica, gateway = Replica("1"), Gateway()
    snapshot = replica.snapshot()
    first, second = (replica.batch(Stored(0, hashed(n), 1)) for n in (1, 2))
    gateway.hear(first, second, first)
    gateway.fetch(snapshot)
    assert gateway.believed == {hashed(1), hashed(2)}


def test_a_snapshot_of_another_life_is_not_used():
    older, newer = Replica("1"), Replica("2")
    older.batch(Stored(0, hashed(1), 1))
    gateway = Gateway()
    gateway.hear(newer.say(Hello, newer.life))
    assert gateway.fetch(older.snapshot()) == {Ask}
    assert not gateway.joiner.exact


def test_batches_that_come_while_the_snapshot_is_awaited_are_joined_to_it():
    replica, gateway = Replica("1"), Gateway()
    replica.batch(Stored(0, hashed(1), 1))
    gateway.hear(replica.say(Hello, replica.life))
    snapshot = replica.snapshot()
    gateway.hear(replica.batch(Stored(0, hashed(2), 1)), replica.batch(Removed(0, hashed(1))))
    gateway.fetch(snapshot)
    assert gateway.joiner.exact
    assert gateway.believed == {hashed(2)}


def test_a_gap_voids_at_once_and_asks():
    replica = Replica("1")
    gateway = exact_gateway(replica)
    gateway.hear(replica.batch(Stored(0, hashed(1), 1)))
    assert gateway.believed == {hashed(1)}
    replica.batch(Stored(0, hashed(2), 1))
    assert gateway.hear(replica.batch(Stored(0, hashed(3), 1))) == {Ask}
    assert gateway.believed == frozenset()


def test_a_beat_shows_a_loss_after_which_nothing_else_is_said():
    replica = Replica("1")
    gateway = exact_gateway(replica)
    replica.batch(Stored(0, hashed(2), 1))
    assert gateway.hear(replica.say(Beat)) == {Ask}
    assert not gateway.joiner.exact


def test_a_snapshot_that_leaves_a_hole_is_not_used():
    replica = Replica("1")
    gateway = Gateway()
    old = replica.snapshot()
    replica.batch(Stored(0, hashed(1), 1))
    gateway.hear(replica.batch(Stored(0, hashed(2), 1)))
    assert gateway.fetch(old) == {Ask}
    assert not gateway.joiner.exact


def test_what_an_older_life_still_says_is_not_believed():
    older, newer = Replica("1"), Replica("2")
    gateway = exact_gateway(older)
    late = older.batch(Stored(0, hashed(1), 1))
    gateway.hear(newer.say(Hello, newer.life))
    gateway.fetch(newer.snapshot())
    assert gateway.hear(late, older.say(Beat)) == set()
    assert gateway.fetch(older.snapshot()) == set()
    assert gateway.joiner.exact
    assert gateway.joiner.incarnation == "2"


def test_a_replica_that_said_goodbye_stays_gone_whatever_comes_late():
    replica = Replica("1")
    gateway = exact_gateway(replica)
    late = replica.batch(Stored(0, hashed(1), 1))
    gateway.hear(replica.say(Goodbye))
    assert gateway.index.lives == {}
    assert gateway.hear(late) == set()
    assert gateway.fetch(replica.snapshot()) == set()
    assert gateway.index.lives == {}


def test_what_is_kept_for_a_snapshot_is_bounded():
    replica, gateway = Replica("1"), Gateway()
    much = Stored(0, bytes(MAX_KEPT_BYTES // 4), 1)
    gateway.hear(replica.say(Hello, replica.life))
    for sequence in range(1, 20):
        gateway.joiner.push(Batch("a", "1", sequence, 0.0, (much,)))
        assert sum(len(one.changes[0].hashes) for one in gateway.joiner.kept) <= MAX_KEPT_BYTES
