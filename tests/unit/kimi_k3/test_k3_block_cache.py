"""What is remembered of rendered messages: whose it is, what it saves, and that it changes no id."""

import json

import pytest

from dayzero.frontend.conversation import Conversation, Message, Role, Text
from dayzero.frontend.kimi_k3.blocks import Said, name_of
from dayzero.frontend.kimi_k3.renderer import Renderer
from tests.unit.kimi_k3.prompts import called, result, said


def turns(count):
    messages = [said("system", "You are an agent.")]
    for i in range(count):
        messages += [said("user", f"do {i}"), called((f"c{i}", "f", json.dumps({"n": i})))]
        messages += [result(f"did {i}", f"c{i}")]
    return Conversation(tuple(messages))


@pytest.fixture
def renderer(small_tokenizer):
    return Renderer(small_tokenizer)


def test_a_growing_conversation_costs_only_its_new_messages(renderer):
    renderer.render(turns(20), "tenant")
    before = renderer.cache_stats()
    renderer.render(turns(21), "tenant")
    after = renderer.cache_stats()
    assert after.misses - before.misses == 3
    assert after.hits - before.hits == 1 + 3 * 20 + 1  # the system's, every turn's, and the generation prompt


def test_one_scope_finds_nothing_of_anothers(renderer):
    renderer.render(turns(5), "one")
    hits = renderer.cache_stats().hits
    renderer.render(turns(5), "another")
    assert renderer.cache_stats().hits == hits


def test_a_cache_without_room_changes_no_id(small_tokenizer, renderer):
    bare = Renderer(small_tokenizer, cache_bytes=0)
    assert (
        bare.render(turns(9), "").ids
        == renderer.render(turns(9), "").ids
        == renderer.render(turns(9), "").ids
    )
    assert bare.cache_stats().entries == 0


def test_what_is_remembered_stays_within_its_bound(small_tokenizer):
    bound = 200_000
    small = Renderer(small_tokenizer, cache_bytes=bound)
    for i in range(60):
        small.render(Conversation((Message(Role.USER, (Text(f"{i} and on " * 300),)),)), f"tenant {i % 7}")
    stats = small.cache_stats()
    assert stats.evicted > 0
    assert 0 < stats.size_bytes <= bound


def test_no_words_are_kept_under_a_blocks_name():
    assert "secret" not in name_of(Said("user", ("secret",)))
    assert name_of(Said("user", ("secret",))) == name_of(Said("user", ("secret",)))


@pytest.mark.parametrize(
    "other",
    [
        Said("system", ("a", "b")),
        Said("user", ("ab",)),
        Said("user", ("a", "b"), "n"),
        Said("user", ("a", "b"), None, "n"),
        Said("user", ("a", "b\ud83d")),
    ],
)
def test_blocks_that_differ_have_names_that_differ(other):
    assert name_of(other) != name_of(Said("user", ("a", "b")))
    assert name_of(Said("user", ("a", "\ud83d"))) != name_of(Said("user", ("a", "\\ud83d")))
