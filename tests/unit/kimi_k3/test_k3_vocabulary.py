"""The vocabulary: its form, what is refused and why, the one that ships, and which one a process uses."""

import hashlib
import logging
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.frontend.errors import FrontendLoadError
from dayzero.frontend.kimi_k3.vocabulary import K3_SHA256, load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED, VARIABLE, VocabularySource, find_vocabulary
from scripts.k3_vocabulary.train import read_counts, vocabulary_file

BYTES = [bytes([value]) for value in range(256)]


def lines(tokens) -> bytes:
    return b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(tokens))


def written(folder, content: bytes) -> Path:
    path = folder / "tiktoken.model"
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def shipped():
    return load_vocabulary(SHIPPED, origin="shipped")


def test_the_shipped_vocabulary_is_small_and_has_every_byte_and_some_thousand_merges(shipped):
    assert SHIPPED.stat().st_size < 150_000
    assert 4_000 < shipped.specials.ranks < 9_000
    assert set(BYTES) <= shipped.ranks.keys()
    assert sorted(shipped.ranks.values()) == list(range(shipped.specials.ranks))
    assert shipped.size == shipped.specials.ranks + 256
    assert shipped.digest == hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    assert "shipped" in shipped.source
    assert str(SHIPPED) in shipped.source


def test_the_shipped_vocabulary_is_what_its_counts_give():
    assert vocabulary_file(read_counts()) == SHIPPED.read_bytes()


def test_training_merges_the_most_frequent_pair_first_and_equal_ones_by_their_bytes():
    tokens = [
        line.split()[0] for line in vocabulary_file({"abab": 5, "cd": 5, "ce": 5}, merges=4).splitlines()
    ]
    assert tokens[256:] == [b64encode(token) for token in (b"ab", b"abab", b"cd", b"ce")]


def test_specials_are_hidden_in_text_and_spelled_where_tokens_are(shipped):
    specials = shipped.specials
    for special, name in specials.names().items():
        assert shipped.table.bytes_of([special]) == b""
        assert shipped.table.token_text(special) == (name, name.encode())
    assert len(shipped.table.visible) == len(shipped.table.spelled) == shipped.size
    assert shipped.table.token_text(specials.end_of_msg)[0] == "<|end_of_msg|>"


def test_the_real_vocabulary_is_kimi_k3s(k3_vocabulary):
    vocabulary = load_vocabulary(k3_vocabulary)
    assert (vocabulary.digest, vocabulary.specials.ranks, vocabulary.size) == (K3_SHA256, 163_584, 163_840)
    assert vocabulary.table.token_text(163_586) == ("<|end_of_msg|>", b"<|end_of_msg|>")


def test_lines_may_come_in_any_order(tmp_path):
    content = b"\n".join(reversed(lines([*BYTES, b"ab"]).splitlines()))
    assert load_vocabulary(written(tmp_path, content)).ranks[b"ab"] == 256


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "256 of the 256 single bytes"),
        (lines(BYTES[:-1]), "lacks 1 of the 256 single bytes"),
        (lines([*BYTES, b"ab", b"ab"]), "each rank from 0 on once, and each token once"),
        (lines([*BYTES, b"ab"]).replace(b" 256\n", b" 257\n"), "each rank from 0 on once"),
        (lines([*BYTES, b"ab"]).replace(b" 256\n", b" 255\n"), "each rank from 0 on once"),
        (lines([*BYTES, b"ab"]).replace(b" 256\n", b" -1\n"), "each rank from 0 on once"),
        (lines([*BYTES, b"ab"])[:-5], "line 257"),
        (lines(BYTES) + b"not*base64 256\n", "line 257"),
        (lines(BYTES) + b"YWI= x\n", "line 257"),
        (lines(BYTES) + b"YWI= 256 256\n", "line 257"),
        (b'{"model": {"type": "BPE"}}', "line 1"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "line 1"),
        (b"\xff\xfe\x00" * 50, "line 1"),
    ],
)
def test_a_file_of_another_form_is_refused_with_what_to_do(tmp_path, content, what):
    with pytest.raises(FrontendLoadError, match=what) as raised:
        load_vocabulary(written(tmp_path, content))
    assert "--vocabulary" in raised.value.message
    assert "tiktoken.model" in raised.value.message


def test_a_file_that_cannot_be_read_is_refused_with_what_to_do(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(FrontendLoadError, match=r"cannot read the vocabulary .* fetch"):
            load_vocabulary(path)


@settings(max_examples=30)
@given(end=st.integers(1, 91_000))
def test_a_cut_off_file_never_loads_as_the_whole(tmp_path_factory, end):
    path = written(tmp_path_factory.mktemp("cut"), SHIPPED.read_bytes()[:end])
    try:
        vocabulary = load_vocabulary(path)
    except FrontendLoadError:
        return
    assert vocabulary.digest != load_vocabulary(SHIPPED).digest
    assert SHIPPED.read_bytes()[end - 1 : end] == b"\n" or SHIPPED.read_bytes()[end : end + 1] == b"\n"


def test_kimi_k3s_own_file_is_refused_when_it_is_cut_off_or_changed(tmp_path, k3_vocabulary):
    whole = k3_vocabulary.read_bytes()
    cut = whole[: whole.rindex(b"\n", 0, len(whole) // 2) + 1]
    changed = (
        whole.replace(b" 163583\n", b" 163584\n")
        .replace(b" 163582\n", b" 163583\n")
        .replace(b" 163584\n", b" 163582\n")
    )
    for content in (cut, changed):
        with pytest.raises(FrontendLoadError, match=r"begins as Kimi K3's .* but is not it"):
            load_vocabulary(written(tmp_path, content))


def test_another_vocabulary_than_kimi_k3s_is_named_in_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_vocabulary(written(tmp_path, lines(BYTES)))
    assert "not Kimi K3's" in caplog.text
    caplog.clear()
    load_vocabulary(SHIPPED, origin="shipped")
    assert caplog.text == ""


def test_the_option_comes_before_the_variable_before_the_folder_before_the_shipped_one(tmp_path, caplog):
    named = {name: tmp_path / name for name in ("option", "variable", "tiktoken.model")}
    for path in named.values():
        path.write_bytes(lines(BYTES))
    option, environ = named["option"], {VARIABLE: str(named["variable"])}
    found = [
        find_vocabulary(option, tmp_path, environ),
        find_vocabulary(None, tmp_path, environ),
        find_vocabulary(None, tmp_path, {VARIABLE: ""}),
    ]
    assert found == [
        VocabularySource(option, "option"),
        VocabularySource(named["variable"], "environment"),
        VocabularySource(named["tiktoken.model"], "model folder"),
    ]
    assert caplog.text == ""
    for folder in (None, tmp_path / "elsewhere"):
        assert find_vocabulary(None, folder, {}) == VocabularySource(SHIPPED, "shipped")
    assert "--vocabulary" in caplog.text
    assert VARIABLE in caplog.text


def test_a_named_file_that_is_not_there_is_an_error_and_no_reason_to_take_another(tmp_path):
    (tmp_path / "tiktoken.model").write_bytes(lines(BYTES))
    with pytest.raises(FrontendLoadError, match=r"--vocabulary names .*absent"):
        find_vocabulary(tmp_path / "absent", tmp_path, {})
    with pytest.raises(FrontendLoadError, match=rf"{VARIABLE} names .*absent"):
        find_vocabulary(None, tmp_path, {VARIABLE: str(tmp_path / "absent")})
