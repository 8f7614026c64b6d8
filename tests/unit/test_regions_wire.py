"""The stream between regions: any split parses the same, and nothing that is damaged passes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine.errors import EngineProtocolError
from dayzero.gateway.regions import wire
from dayzero.gateway.regions.wire import Frame, Kind, Parser, Writer

frames = st.builds(
    Frame,
    st.sampled_from([Kind.DELTA, Kind.HEARTBEAT, Kind.PLACED]),
    st.binary(max_size=40),
)
streams = st.tuples(
    st.lists(frames, max_size=6), st.sampled_from([Frame(Kind.END), Frame(Kind.ERROR, b"e")])
).map(lambda parts: [*parts[0], parts[1]])


def written(stream):
    writer = Writer()
    return b"".join(writer.frame(frame.kind, frame.payload) for frame in stream)


def parsed(pieces):
    parser, found = Parser(), []
    for piece in pieces:
        found += parser.feed(piece)
    parser.end()
    return found


@given(streams, st.lists(st.integers(0, 400), max_size=12))
def test_any_split_of_the_bytes_parses_the_same(stream, cuts):
    data = written(stream)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert parsed(pieces) == stream
    assert parsed([bytes([byte]) for byte in data]) == stream


@given(streams, st.data())
def test_any_flipped_bit_is_noticed(stream, data):
    raw = bytearray(written(stream))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(EngineProtocolError):
        parsed([bytes(raw)])


@given(streams, st.data())
def test_a_stream_that_is_cut_anywhere_is_noticed(stream, data):
    raw = written(stream)
    with pytest.raises(EngineProtocolError):
        parsed([raw[: data.draw(st.integers(0, len(raw) - 1))]])


@given(st.lists(frames, min_size=2, max_size=6, unique_by=lambda frame: (frame.kind, frame.payload)))
def test_a_frame_that_is_lost_repeated_or_moved_is_noticed(stream):
    writer = Writer()
    parts = [writer.frame(frame.kind, frame.payload) for frame in [*stream, Frame(Kind.END)]]
    for damaged in (
        [parts[0], *parts[2:]],
        [parts[0], parts[1], *parts[1:]],
        [parts[0], *parts[2:-1], parts[1], parts[-1]] if len(stream) > 2 else [parts[0], parts[2]],
    ):
        with pytest.raises(EngineProtocolError):
            parsed(damaged)


@given(st.binary(min_size=1, max_size=200))
def test_bytes_that_are_not_ours_are_a_protocol_error_and_nothing_else(data):
    with pytest.raises(EngineProtocolError):
        parsed([data])


def test_another_version_is_named():
    newer = b"dzrg" + bytes([wire.VERSION + 1])
    with pytest.raises(EngineProtocolError, match=f"version {wire.VERSION + 1}"):
        list(Parser().feed(newer))


def test_a_web_page_is_not_a_stream():
    with pytest.raises(EngineProtocolError, match="not a stream"):
        list(Parser().feed(b"<html><body>502 Bad Gateway"))


def test_a_frame_is_bounded_before_it_is_kept_and_before_it_is_sent():
    head = wire.PREAMBLE + bytes([Kind.DELTA]) + (wire.MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(EngineProtocolError, match="at most"):
        list(Parser().feed(head))
    with pytest.raises(EngineProtocolError, match="at most"):
        Writer().frame(Kind.DELTA, bytes(wire.MAX_PAYLOAD_BYTES + 1))


@pytest.mark.parametrize(
    ("kind", "most_bytes"),
    [
        (Kind.ERROR, wire.MAX_ERROR_BYTES),
        *((kind, wire.MAX_OTHER_BYTES) for kind in (Kind.PLACED, Kind.HEARTBEAT, Kind.END)),
    ],
)
def test_frames_that_are_small_are_bounded_as_such(kind, most_bytes):
    assert parsed(
        [written([Frame(kind, bytes(most_bytes)), *([] if kind in wire.LAST else [Frame(Kind.END)])])]
    )
    head = wire.PREAMBLE + bytes([kind]) + (most_bytes + 1).to_bytes(4, "little")
    with pytest.raises(EngineProtocolError, match="at most"):
        list(Parser().feed(head))
    with pytest.raises(EngineProtocolError, match="at most"):
        Writer().frame(kind, bytes(most_bytes + 1))


@pytest.mark.parametrize("name", ["r1", "a" * 64, "app.m#x_1-2"])
def test_a_replicas_name_is_taken_as_it_is(name):
    assert wire.replica_name(name.encode()) == name


@pytest.mark.parametrize(
    "name", [b"", b"a" * 65, b"r1\n", b"r1\r\nx: y", b"<b>", b"a/b", b"a b", b"\xff", "é".encode()]
)
def test_what_is_no_replicas_name_is_a_protocol_error(name):
    with pytest.raises(EngineProtocolError, match="name"):
        wire.replica_name(name)


def test_a_kind_of_the_future_is_refused_and_nothing_may_follow_the_last_frame():
    class Newer(int):
        pass

    with pytest.raises(EngineProtocolError, match="unknown kind 9"):
        list(Parser().feed(Writer().frame(Newer(9))))
    writer = Writer()
    ended = writer.frame(Kind.END) + writer.frame(Kind.HEARTBEAT)
    with pytest.raises(EngineProtocolError, match="after the last"):
        list(Parser().feed(ended))
