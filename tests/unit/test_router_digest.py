"""The digest for peers: small, deep, versioned by content, and read with suspicion."""

from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.types import pack_ids
from dayzero.router.chain import Chain, Namespace
from dayzero.router.changes import Cleared, Layout, Life, Removed, Stored
from dayzero.router.digest import MAX_NAMES, MILESTONES, Offers, PrefixDigest
from dayzero.router.errors import DigestError
from dayzero.router.residency import Residency

PLAIN = Layout(4, 4, (0,))
HYBRID = Layout(4, 4, (2,), (0, 1))


def residency(*layouts):
    made = Residency()
    for layout in layouts:
        made.begin(
            Life(replica=f"r{len(made.lives)}", incarnation="1", model="m", layout=layout, blocks=10**6)
        )
    return made


def chain(ids, unit=4):
    return Chain.of(pack_ids(ids), Namespace("m", unit))


def test_an_attention_prefix_is_known_within_a_third_of_its_depth():
    held = residency(PLAIN)
    whole = chain(range(4 * 1000))
    held.apply("r0", [Stored(0, whole.joined, 1)])
    digest = held.digest()
    assert len(digest) < 20
    for units in range(1, 1001):
        depth = digest.depth_tokens(chain(range(4 * units))) // 4
        assert units * 2 / 3 - 1 <= depth <= units
    assert digest.depth_tokens(chain(range(1, 4001))) == 0


def test_a_million_tokens_take_about_25_names():
    assert sum(depth <= 1_048_576 // 128 for depth in MILESTONES) <= 25


def test_a_hybrid_tells_of_the_positions_where_every_group_can_resume():
    held = residency(HYBRID)
    whole = chain(range(400))
    names = whole.hashes()
    held.apply("r0", [Stored(2, whole.joined, 1), Stored(0, names[49], 50), Stored(1, names[49], 50)])
    held.apply("r0", [Stored(0, names[79], 80)])
    assert held.digest().depth_tokens(whole) == 200, "the deeper checkpoint is in one group alone"
    held.apply("r0", [Stored(1, names[79], 80)])
    assert held.digest().depth_tokens(whole) == 320
    held.apply("r0", [Removed(2, names[79])])
    assert held.digest().depth_tokens(whole) == 200


def test_the_version_changes_with_the_content_and_only_with_it():
    held = residency(PLAIN, PLAIN)
    first = held.digest()
    held.apply("r0", [Stored(0, chain(range(40)).joined, 1)])
    second = held.digest()
    assert first.version != second.version
    held.apply("r1", [Stored(0, chain(range(40)).joined, 1)])
    held.apply("r0", [Cleared()])
    assert held.digest().version == second.version, "another replica has the same"
    held.drop("r1")
    assert held.digest().version == first.version
    assert len(held.digest()) == 0


def test_the_same_digest_is_given_while_nothing_changed():
    held = residency(PLAIN)
    held.apply("r0", [Stored(0, chain(range(40)).joined, 1)])
    digest = held.digest()
    held.apply("r0", [Removed(0, chain(range(16)).hashes()[3])])
    assert held.digest() is digest, "no milestone went"


def test_the_newest_names_are_kept_where_there_are_too_many():
    offers = Offers(max_names=10)
    names = [chain([number] * 4).hashes()[0] for number in range(30)]
    offers.add(4, names)
    offers.add(4, names[:1])
    digest = offers.digest()
    assert len(digest) == 10
    told = [n for n in range(30) if digest.depth_tokens(chain([n] * 4))]
    assert told == [0, *range(21, 30)]


@given(
    st.dictionaries(
        st.integers(1, 2**24), st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=20), max_size=3
    )
)
def test_a_digest_comes_back_from_its_bytes(names):
    digest = PrefixDigest.of({unit: np.array(sorted(own), dtype="<u8") for unit, own in names.items()})
    back = PrefixDigest.decode(digest.encode())
    assert back.version == digest.version
    assert {unit: set(own.tolist()) for unit, own in back.names.items()} == names


def wire(*sections, tag=1):
    return msgspec.msgpack.encode([tag, [list(section) for section in sections]])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80",
        wire((4, b"\x00" * 8), tag=2),
        wire((0, b"\x00" * 8)),
        wire((-4, b"\x00" * 8)),
        wire((2**30, b"\x00" * 8)),
        wire((4, b"\x00" * 7)),
        wire((4, b"\x00" * 16)),
        wire((4, b"\x00" * 8), (4, b"\x01" * 8)),
        wire((4, np.arange(MAX_NAMES + 1, dtype="<u8").tobytes())),
        wire((4, "text")),
    ],
)
def test_bytes_that_cannot_be_a_digest_are_refused(data):
    with pytest.raises(DigestError):
        PrefixDigest.decode(data)


@given(st.binary(max_size=100))
def test_no_bytes_do_anything_but_decode_or_be_refused(data):
    with suppress(DigestError):
        PrefixDigest.decode(data).depth_tokens(chain(range(16)))


@pytest.mark.parametrize("data", [b"\x91" * 100_000 + b"\xc0", b"\x93\x01\x90" + b"\x91" * 100_000 + b"\xc0"])
def test_a_digest_that_is_nested_deep_is_a_digest_error(data):
    with pytest.raises(DigestError):
        PrefixDigest.decode(data)
