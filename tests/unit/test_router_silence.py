"""Silence is told from a carrier of reports that stopped."""

from hypothesis import given
from hypothesis import strategies as st

from dayzero.router.load import ReplicaId
from dayzero.router.silence import SUSPECT_AFTER_S, silent

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


def test_one_that_stops_reporting_while_others_go_on_is_silent():
    assert silent({A: 4.0, B: 0.3, C: 1.0}, SUSPECT_AFTER_S) == {A}


def test_when_nobody_reports_nobody_is_silent():
    assert silent({A: 40.0, B: 39.0}, SUSPECT_AFTER_S) == frozenset()
    assert silent({A: 40.0}, SUSPECT_AFTER_S) == frozenset()
    assert silent({}, SUSPECT_AFTER_S) == frozenset()


@given(st.dictionaries(st.sampled_from([A, B, C]), st.floats(0, 100)), st.floats(2, 50))
def test_never_all_are_silent_and_never_a_fresh_one(ages, after_s):
    found = silent(ages, after_s)
    assert found < set(ages) or not ages
    assert all(ages[replica] > after_s for replica in found)
