"""Chains: a prefix's chain is a prefix of the chain, and what must tell prompts apart does."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.types import pack_ids
from dayzero.router.chain import HASH_BYTES, Chain, Namespace, Picture, extend, split

ids = st.lists(st.integers(0, 2**32 - 1), max_size=60)
words = st.text(max_size=6)
spaces = st.builds(Namespace, words, st.integers(1, 9), words, st.none() | words)


@given(ids, ids, spaces)
def test_a_prefixs_chain_is_a_prefix_of_the_chain(first, more, space):
    prefix = Chain.of(pack_ids(first), space)
    whole = Chain.of(pack_ids(first + more), space)
    assert whole.joined.startswith(prefix.joined)
    assert len(prefix) == len(first) // space.unit_tokens
    assert len(whole) == (len(first) + len(more)) // space.unit_tokens


@given(ids, st.data(), spaces)
def test_prompts_share_exactly_the_units_before_they_differ(prompt, data, space):
    other = list(prompt)
    at = data.draw(st.integers(0, max(len(prompt) - 1, 0)))
    if other:
        other[at] = (other[at] + data.draw(st.integers(1, 2**32 - 1))) % 2**32
    mine, its = Chain.of(pack_ids(prompt), space).hashes(), Chain.of(pack_ids(other), space).hashes()
    shared = at // space.unit_tokens if prompt else 0
    assert mine[:shared] == its[:shared]
    assert not set(mine[shared:]) & set(its[shared:])


@given(st.lists(st.integers(0, 99), min_size=9, max_size=60), spaces, spaces)
def test_another_salt_model_unit_or_adapter_shares_nothing(prompt, one, other):
    mine, its = (set(Chain.of(pack_ids(prompt), space).hashes()) for space in (one, other))
    assert (mine == its) if one == other else not mine & its


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60), spaces, st.data())
def test_a_chain_may_be_extended_from_any_of_its_hashes(prompt, space, data):
    """As the translator does, run by run."""
    whole = Chain.of(pack_ids(prompt), space).hashes()
    cut = data.draw(st.integers(0, len(whole)))
    parent = whole[cut - 1] if cut else space.root()
    rest = pack_ids(prompt[cut * space.unit_tokens :])
    assert whole[:cut] + extend(parent, rest, space.unit_tokens) == whole


def test_a_picture_counts_from_the_unit_where_it_begins():
    space, prompt = Namespace("m", 4), pack_ids(range(20))
    without = Chain.of(prompt, space).hashes()
    one = Chain.of(prompt, space, [Picture(9, b"cat")]).hashes()
    other = Chain.of(prompt, space, [Picture(9, b"dog")]).hashes()
    moved = Chain.of(prompt, space, [Picture(10, b"cat")]).hashes()
    assert without[:2] == one[:2] == other[:2] == moved[:2]
    assert len({*without[2:], *one[2:], *other[2:], *moved[2:]}) == 4 * 3


@given(st.lists(st.tuples(st.integers(0, 19), st.binary(max_size=3)), min_size=2, max_size=4, unique=True))
def test_pictures_are_told_apart_however_they_stand(pictures):
    space, prompt = Namespace("m", 20), pack_ids(range(20))
    here = [Picture(*picture) for picture in sorted(pictures)]
    whole = Chain.of(prompt, space, here).joined
    assert whole != Chain.of(prompt, space, here[1:]).joined
    merged = [Picture(here[0].offset_tokens, here[0].digest + here[1].digest), *here[2:]]
    assert whole != Chain.of(prompt, space, merged).joined


def test_the_root_frames_its_parts():
    """Text that moves from one part to the next makes another root."""
    roots = {
        Namespace("ab", 4, "c").root(),
        Namespace("a", 4, "bc").root(),
        Namespace("abc", 4, "").root(),
        Namespace("ab", 4, "", "c").root(),
        Namespace("ab", 4, "", "").root(),
        Namespace("ab", 4, "").root(),
    }
    assert len(roots) == 6


def test_another_process_names_the_same_prompt_the_same():
    code = (
        "from dayzero.router.chain import Chain, Namespace;"
        "print(Chain.of(bytes(range(64)), Namespace('m', 4, 's', 'l')).joined.hex())"
    )
    mine = Chain.of(bytes(range(64)), Namespace("m", 4, "s", "l")).joined.hex()
    path = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"}
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=path)
    assert said.stdout.strip() == mine


@given(st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES), max_size=9))
def test_split_undoes_joining(hashes):
    assert split(b"".join(hashes)) == hashes
