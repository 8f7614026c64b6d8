"""Stop strings: the naive search on the whole text, at every split, holding back no more than must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.stop_strings import StopMatcher, StopStrings
from tests.unit.frontend.streams import split

TEXTS = st.text("ab\n<é", max_size=40)
STOPS = st.lists(st.text("ab\n<é", min_size=1, max_size=6), max_size=5)
CUTS = st.lists(st.integers(0, 40), max_size=8)


def naive(text, stops):
    """The first end at which some stop string is complete; the longest of those."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(parts, stops):
    matcher = StopMatcher(StopStrings(stops))
    shown = "".join([matcher.push(part) for part in parts])
    if matcher.matched is None:
        shown += matcher.flush()
    return shown, matcher.matched


@given(text=TEXTS, stops=STOPS, cuts=CUTS)
def test_any_split_gives_what_a_search_of_the_whole_text_gives(text, stops, cuts):
    assert run(split(text, cuts), stops) == naive(text, stops)


@given(text=TEXTS, stops=STOPS)
def test_only_the_longest_suffix_that_may_become_a_stop_string_is_held(text, stops):
    matcher = StopMatcher(StopStrings(stops))
    shown = ""
    for end, character in enumerate(text, start=1):
        shown += matcher.push(character)
        if matcher.matched is not None:
            return
        held = text[len(shown) : end]
        prefixes = {stop[:i] for stop in stops for i in range(len(stop))}
        assert held == max((p for p in prefixes if text[:end].endswith(p)), key=len, default="")


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stop"),
    [
        ("one STOP two", ["STOP"], "one ", "STOP"),
        ("abcd", ["bcd", "c"], "ab", "c"),  # the end that comes first
        ("xabc", ["c", "abc", "bc"], "x", "abc"),  # the longest of those that end together
        ("ababac", ["abac"], "ab", "abac"),  # a failed start is not the end of the search
        ("aaab", ["aab"], "a", "aab"),
        ("漢字。", ["。"], "漢字", "。"),
        ("a]b^c-d\\", ["-d", "]x", "^y", "\\z"], "a]b^c", "-d"),  # characters that a pattern reads otherwise
        ("nothing", ["STOP"], "nothing", None),
        ("end ST", ["STOP"], "end ST", None),
        ("text", [], "text", None),
    ],
)
def test_known_cases(text, stops, shown, stop):
    assert run([text], stops) == (shown, stop)
    assert run(list(text), stops) == (shown, stop)


def test_what_follows_a_match_is_kept_apart_and_later_text_is_not_shown():
    matcher = StopMatcher(StopStrings(["b"]))
    assert matcher.push("abc") == "a"
    assert (matcher.rest, matcher.push("more"), matcher.flush()) == ("c", "", "")


@given(text=TEXTS, stops=STOPS, cuts=CUTS)
def test_flushed_at_any_places_it_stops_where_the_whole_text_does_and_shows_no_stop_string(text, stops, cuts):
    matcher = StopMatcher(StopStrings(stops))
    shown = "".join(matcher.push(part) + matcher.flush() for part in split(text, cuts))
    expected, matched = naive(text, stops)
    assert matcher.matched == matched
    assert shown.startswith(expected)
    assert not any(stop in shown for stop in stops)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_the_work_is_linear_in_the_text():
    """Counted in automaton steps, not seconds: the text is as bad as can be for its stop string."""
    steps = 0

    class Counting(StopStrings):
        def next(self, state, character):
            nonlocal steps
            steps += 1
            return super().next(state, character)

    strings = Counting(["a" * 200 + "b"])
    steps = 0
    matcher = StopMatcher(strings)
    shown = "".join([matcher.push("a") for _ in range(5000)])
    assert len(shown) == 5000 - 200
    assert steps <= 5000
