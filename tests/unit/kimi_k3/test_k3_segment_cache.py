"""Remembered segments: never another text's ids, never another scope's, never more than the bound."""

import gc
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.kimi_k3.segment_cache import SCOPE_SHARE, SegmentCache
from dayzero.frontend.kimi_k3.segment_scope import LONG_CHARACTERS, SegmentScope, entry_bytes

# Few texts, short and long, so that batches repeat, part and evict one another.
NAMES = [str(number) * (1 if number % 2 else LONG_CHARACTERS + number) for number in range(12)]
BATCHES = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from(NAMES), max_size=6)), max_size=30
)


def ids_of(scope: str, text: str) -> bytes:
    return f"{scope}{text}".encode()


def remember(cache, scope, texts):
    found = cache.get(scope, texts)
    missing = {text for text, ids in zip(texts, found, strict=True) if ids is None}
    cache.put(scope, [(text, ids_of(scope, text)) for text in missing])
    return found


@given(batches=BATCHES, bound_bytes=st.sampled_from([0, 5_000, 12_000, 20_000, 1_000_000]))
def test_what_is_found_is_what_that_scope_put_there_and_the_bound_holds(batches, bound_bytes):
    cache = SegmentCache(bound_bytes)
    put: dict[str, set[str]] = {"a": set(), "b": set()}
    for scope, texts in batches:
        found = remember(cache, scope, texts)
        for text, ids in zip(texts, found, strict=True):
            assert ids is None or (text in put[scope] and ids == ids_of(scope, text))
        if bound_bytes == 1_000_000:
            assert [ids is not None for ids in found] == [text in put[scope] for text in texts]
        put[scope] |= set(texts)
        assert cache.stats().size_bytes <= bound_bytes
    assert cache.stats().hits + cache.stats().misses == sum(len(texts) for _, texts in batches)


@given(batches=BATCHES, evictions=st.integers(0, 12))
def test_a_scopes_size_is_that_of_what_it_holds(batches, evictions):
    scope = SegmentScope()
    empty_bytes = scope.size_bytes
    for _, texts in batches:
        for text in texts:
            scope.add(text, b"x")
    for _ in range(min(evictions, len(scope))):
        scope.evict()
    held = [text for text in NAMES if scope.find([text]) != [None]]
    assert len(held) == len(scope)
    assert scope.size_bytes == empty_bytes + sum(entry_bytes(text, b"x") for text in held)


def test_a_text_in_use_outlives_any_number_of_texts_that_are_not():
    cache = SegmentCache(200_000)
    remember(cache, "tenant", ["the system prompt"])
    for number in range(2_000):
        assert remember(cache, "tenant", ["the system prompt", f"question {number}"])[0] is not None
    assert cache.stats().evicted > 1_000


def test_one_scope_cannot_take_more_than_its_share():
    cache = SegmentCache(400_000)
    remember(cache, "quiet", ["hello"])
    for number in range(5_000):
        remember(cache, "loud", [f"{number}"])
    assert cache.get("quiet", ["hello"]) != [None]
    assert cache.stats().size_bytes < 400_000 / SCOPE_SHARE + 3_000


def test_over_the_bound_the_scope_that_was_idle_longest_loses_its_texts():
    cache = SegmentCache(400_000)
    for scope in ("first", "second", "third", "fourth"):
        for number in range(300):
            remember(cache, scope, [f"{number}"])
    cache.get("first", ["0"])
    for number in range(300):
        remember(cache, "fifth", [f"{number}"])
    texts = [str(number) for number in range(300)]
    known = {
        scope: 300 - cache.get(scope, texts).count(None) for scope in ("first", "second", "third", "fifth")
    }
    assert known["second"] < known["third"] == known["first"]
    assert known["fifth"] > 0


def test_what_is_larger_than_a_share_is_not_kept():
    cache = SegmentCache(100_000)
    cache.put("tenant", [("x" * 30_000, b"ids"), ("y" * 1_000, b"ids")])
    assert cache.get("tenant", ["x" * 30_000, "y" * 1_000]) == [None, b"ids"]


def test_a_conversation_that_parts_from_the_one_before_has_its_own_ids():
    cache = SegmentCache(1_000_000)
    system, first, second = ("s" * 500, "f" * 500, "g" * 500)
    for texts in ([system, first], [system, second], [system, first], [system, second, first]):
        remember(cache, "tenant", texts)
        assert cache.get("tenant", texts) == [ids_of("tenant", text) for text in texts]


def test_the_bytes_counted_are_at_least_those_that_are_held():
    """Texts of every size, ids as many bytes: what Python allocated is no more than what was counted."""
    for characters in (10, 300, 3_000):
        cache = SegmentCache(4_000_000)
        gc.collect()
        tracemalloc.start()
        before_bytes = tracemalloc.get_traced_memory()[0]
        number = 0
        while cache.stats().evicted < 500:
            texts = [f"{number} {place}".ljust(characters, "漢" if place % 2 else "x") for place in range(20)]
            cache.put(f"{number % 6}", [(text, bytes(characters)) for text in texts])
            cache.get(f"{number % 6}", texts)
            number += 1
        del texts
        held_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
        tracemalloc.stop()
        assert held_bytes <= cache.stats().size_bytes <= 4_000_000


def test_the_garbage_collector_does_not_walk_what_is_remembered():
    """A million texts would hold up the event loop for a tenth of a second, at every full collection."""
    cache = SegmentCache(4_000_000)
    cache.put("tenant", [(f"{number}", b"ids") for number in range(100)])
    scope = cache._scopes["tenant"]
    gc.collect()
    held = [getattr(scope, name) for name in ("_slots", "_texts", "_ids", "_following", "_marks")]
    assert not any(gc.is_tracked(value) for value in held)
