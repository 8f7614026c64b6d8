"""How many values a body holds, told before it is parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.api import value_count
from dayzero.api.body import decode
from dayzero.api.chat.request import decoder
from dayzero.api.errors import BodyError
from dayzero.api.value_count import MAX_VALUES, too_many_values

TEXT = st.text(alphabet='a,:[{}]\\"é', max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


def separators(value):
    """Of a parsed value, as JSON writes it: counted without looking at any text."""
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(separators, value))
    if isinstance(value, dict):
        return 1 + max(len(value) - 1, 0) + len(value) + sum(map(separators, value.values()))
    return 0


@given(value=VALUES, ascii_only=st.booleans())
def test_separators_count_outside_strings_and_nowhere_else(value, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    count = separators(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_count, "MAX_VALUES", count)
        assert not too_many_values(body)
        patch.setattr(value_count, "MAX_VALUES", count - 1)
        assert too_many_values(body)


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed():
    body = b'{"model":"m","zz":[' + b"[]," * MAX_VALUES + b"1]}"
    with pytest.raises(BodyError, match="1,000,000 JSON values") as refused:
        decode(body, decoder)
    assert refused.value.code == "too_many_values"


def test_a_long_text_full_of_separators_is_text():
    text = '{"a": [1, 2]}, ' * 250_000
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert sum(map(body.count, (b",", b":", b"[", b"{"))) > MAX_VALUES
    assert decode(body, decoder).messages[0].content == text
