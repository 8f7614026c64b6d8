"""Bytes at the engine seam: what is not ours is a protocol error and nothing else, and figures are bounded."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.engine import frames
from dayzero.engine.errors import EngineOverloadedError, EngineProtocolError
from dayzero.engine.types import EngineRequest, Finish, Sampling, TokenDelta, Usage, pack_ids

DEEP = b"\x91" * 100_000 + b"\xc0"
"""Lists in lists."""


def with_field(name, value):
    """A map of one field, the value as it stands."""
    return b"\x81" + msgspec.msgpack.encode(name) + value


def decoded_frame(data):
    return frames.decode(b"d" + data)


def decoded_error(data):
    return frames.decode(b"e" + data)


READERS = [TokenDelta.decode, EngineRequest.decode, decoded_frame, decoded_error]
BAD = {
    "nested deep": DEEP,
    "nested deep in a field that is kept": with_field("kv_transfer", with_field("k", DEEP)),
    "nested deep in a field that is not known": with_field("unknown", DEEP),
    "nested deep after the fields of an error": b"\x96" + b"\xa0\xa0\xc0\xc0\xc0" + DEEP,
    "text that is none": with_field("finish", b"\xa2\xff\xfe"),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("what", BAD)
def test_bytes_that_cannot_be_read_are_a_protocol_error(read, what):
    with pytest.raises(EngineProtocolError):
        read(BAD[what])


@given(st.sampled_from([TokenDelta.decode, EngineRequest.decode]), st.binary(max_size=60))
def test_any_bytes_are_read_or_are_a_protocol_error(read, data):
    try:
        told = read(data)
    except EngineProtocolError as e:
        assert e.message
    else:
        assert read(told.encode()) == told


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": [-1]},
        {"token_ids": [2**32]},
        {"token_ids": [2**64 - 1]},
        {"logprobs": [[-1, 0.0, []]]},
        {"logprobs": [[1, 0.0, [[2**32, 0.0]]]]},
        {"usage": {"prompt_tokens": -1, "completion_tokens": 0}},
        {"usage": {"prompt_tokens": 1, "completion_tokens": -1}},
        {"usage": {"prompt_tokens": 1, "completion_tokens": 2**40}},
        {"usage": {"prompt_tokens": 1, "completion_tokens": 0, "cached_tokens": -1}},
        {"usage": {"prompt_tokens": 1, "completion_tokens": 0, "cached_tokens": 2}},
        {"usage": {"prompt_tokens": 1, "completion_tokens": 0, "transferred_tokens": -1}},
    ],
)
def test_figures_that_cannot_be_are_refused(fields):
    with pytest.raises(EngineProtocolError):
        TokenDelta.decode(msgspec.msgpack.encode(fields))


def test_figures_at_their_bounds_pass():
    delta = TokenDelta(token_ids=(0, 2**32 - 1), finish=Finish.STOP, usage=Usage(5, 0, 5))
    assert frames.decode(frames.encode_delta(delta)) == delta
    request = EngineRequest(request_id="r", prompt_ids=pack_ids([2**32 - 1]), sampling=Sampling(max_tokens=1))
    assert EngineRequest.decode(request.encode()) == request


def test_what_an_error_says_is_cut_where_it_is_written_and_refused_where_it_is_read():
    error = EngineOverloadedError("m" * 10_000, param="p" * 1_000, code="c" * 1_000, retry_after_s=2.0)
    with pytest.raises(EngineOverloadedError) as raised:
        frames.decode(frames.encode_error(error))
    told = raised.value
    assert (len(told.message), len(told.param), len(told.code)) == (4096, 256, 256)
    assert told.retry_after_s == 2.0
    longer = msgspec.msgpack.encode(["EngineError", "m" * 10_000, None, None, None])
    with pytest.raises(EngineProtocolError, match="cannot be read"):
        frames.decode(b"e" + longer)
