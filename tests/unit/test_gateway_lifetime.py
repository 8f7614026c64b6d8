"""A request's owner settles it once, whatever its observers do."""

import pytest

from dayzero.gateway.lifetime import InFlight, Lifetime


def test_an_observer_that_fails_is_logged_and_keeps_nothing_from_the_others_or_the_client(caplog):
    seen, in_flight = [], InFlight()

    def failing(settlement):
        raise ValueError("cannot count")

    with pytest.raises(KeyError), Lifetime("r1", "/x", in_flight, (failing, seen.append), lambda: 1.0):
        raise KeyError("the request's own")
    assert [settlement.request_id for settlement in seen] == ["r1"]
    assert len(in_flight) == 0
    assert "cannot count" in caplog.text
