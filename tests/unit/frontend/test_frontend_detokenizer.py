"""Detokenizing: the bytes' own decoding, at every split, and never part of a code point."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.frontend.chat_template import vocabulary
from dayzero.frontend.detokenizer import Detokenizer, TokenTable
from tests.unit.frontend.streams import split

BYTES = TokenTable(tuple(bytes([b]) for b in range(256)), tuple(bytes([b]) for b in range(256)))
# Bytes that make whole, broken, overlong and too long sequences likely.
TRICKY = st.lists(
    st.one_of(
        st.sampled_from(
            [0x41, 0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xA0, 0xED, 0xF0, 0x9F, 0x98, 0x80, 0xF4, 0x90, 0xFF]
        ),
        st.integers(0, 255),
    ),
    max_size=24,
)


@given(ids=TRICKY, cuts=st.lists(st.integers(0, 24), max_size=6))
def test_any_bytes_in_any_split_are_decoded_as_the_whole_is(ids, cuts):
    detokenizer = Detokenizer(BYTES)
    text = "".join([detokenizer.push(part) for part in split(ids, cuts)]) + detokenizer.finish()
    assert text == bytes(ids).decode("utf-8", "replace")


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_no_part_of_a_code_point_is_ever_shown(text):
    detokenizer = Detokenizer(BYTES)
    shown = ""
    for byte in text.encode():
        shown += detokenizer.push([byte])
        assert text.startswith(shown)
    assert shown == text
    assert detokenizer.finish() == ""


def test_an_incomplete_sequence_becomes_one_replacement_character_at_the_end():
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push("😀".encode()[:3]) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.push(list(b"ok")) == "ok"


def test_ids_outside_the_table_and_hidden_ones_have_no_text():
    table = TokenTable((b"a", b""), (b"a", b"<end>"))
    detokenizer = Detokenizer(table)
    assert detokenizer.push([0, 1, 7, -9, 0]) + detokenizer.finish() == "aa"
    assert table.token_text(1) == ("<end>", b"<end>")
    assert table.token_text(7) == ("", b"")
    assert table.token_text(-1) == ("", b"")


def test_part_of_a_code_point_is_shown_as_text_and_as_bytes():
    assert BYTES.token_text(0xF0) == ("\ufffd", b"\xf0")


def test_one_space_is_taken_off_the_beginning_where_the_tokenizer_writes_one():
    table = TokenTable((b" a", b"", b" "), (b" a", b"", b" "), strip_leading_space=True)
    detokenizer = Detokenizer(table)
    assert [detokenizer.push(ids) for ids in ([1], [2], [0], [0])] == ["", "", " a", " a"]


@pytest.mark.parametrize("name", ["chatml", "mistral", "gemma"])
def test_a_vocabularys_table_says_what_hugging_face_decodes(folders, name):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folders[name] / "tokenizer.json"))
    table = vocabulary.read(folders[name] / "tokenizer.json").table
    text = "  The quick 漢字 😀 fox\n\n\tnaïve \u0007 ok "
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(table)
    assert "".join([detokenizer.push([i]) for i in ids]) + detokenizer.finish() == tokenizer.decode(ids)
