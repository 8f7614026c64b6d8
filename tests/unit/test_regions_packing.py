"""Packing of requests between regions."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.api.errors import BodyTooLargeError
from dayzero.errors import InvalidRequestError
from dayzero.gateway.regions import packing
from dayzero.gateway.regions.packing import ENCODING, pack, unpack


@given(body=st.binary(max_size=2000), copies=st.integers(1, 200))
async def test_what_is_packed_comes_back_whole(body, copies):
    assert await unpack(await pack(body * copies), ENCODING, len(body) * copies) == body * copies


@given(body=st.binary(min_size=1, max_size=2000), copies=st.integers(1, 200))
async def test_no_more_is_unpacked_than_is_taken(body, copies):
    with pytest.raises(BodyTooLargeError):
        await unpack(await pack(body * copies), ENCODING, len(body) * copies - 1)


@given(data=st.binary(max_size=300))
async def test_any_bytes_are_unpacked_or_refused(data):
    try:
        body = await unpack(data, ENCODING, 10_000)
    except InvalidRequestError:
        return
    assert zlib.decompress(data) == body


@given(body=st.binary(max_size=500), data=st.data())
async def test_a_body_that_was_cut_or_goes_on_is_refused(body, data):
    packed = await pack(body)
    cut = data.draw(st.integers(0, len(packed) - 1))
    for wrong in (packed[:cut], packed + b"x"):
        with pytest.raises(InvalidRequestError):
            await unpack(wrong, ENCODING, 10_000)


async def test_a_body_without_an_encoding_is_as_it_is_and_another_encoding_is_refused():
    assert await unpack(b"as it is", None, 4) == b"as it is"
    with pytest.raises(InvalidRequestError, match="deflate"):
        await unpack(b"x", "gzip", 100)


@pytest.mark.parametrize(
    ("body_bytes", "round_trip_s", "worth"),
    [(48_000, 0.07, True), (48_000, 0.0005, False), (48_000, None, False), (1_000, 0.07, False)],
)
def test_what_saves_no_round_trip_is_not_packed(body_bytes, round_trip_s, worth):
    assert packing.worth_it(body_bytes, round_trip_s) is worth
