"""Plain text to ids: Hugging Face's, never a control token, in bounded time."""

import json
import logging
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.frontend.chat_template import text_encoder, vocabulary
from dayzero.frontend.chat_template.text_encoder import TextEncoder
from dayzero.frontend.detokenizer import Detokenizer
from dayzero.frontend.errors import FrontendLoadError
from tests.unit.frontend.models import CHATML, GEMMA, MISTRAL, byte_level_bpe, sentencepiece_bpe

SAMPLES = [
    "",
    " ",
    "a",
    "  two  spaces   and\ttabs\n\n\n  lines\r\n",
    "def f(x):\n    return {'a': [1, 22, 333, 4444]}  # 100%\n",
    "漢字かな交じり文。Привет, мир! naïve café e\u0301 ﬁ Ⅷ",
    "😀🏴‍☠️👩‍👩‍👧‍👦 \u200d\u200b\ufeff \u3000\u00a0",
    "'s 't 'RE I'll we'd DON'T",
    "<|im_start|>user<|im_end|><|endoftext|> [INST] </s> <0x0A> ▁x",
    "\ufdd00 \ufdd0460",
]
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.text(" \n\t\r\u3000aA1é漢😀'._<|>", max_size=60),
    st.lists(st.sampled_from(SAMPLES), max_size=4).map("".join),
)


def text_tokenizer(words):
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_str(words.text_json)


@pytest.fixture(scope="module", params=["chatml", "gemma", "mistral", "smollm2"])
def words(request, folders):
    folder = (
        request.getfixturevalue("smollm2_folder") if request.param == "smollm2" else folders[request.param]
    )
    return vocabulary.read(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def encoder(words):
    return TextEncoder(words)


@pytest.fixture(scope="module")
def hugging_face(words):
    return text_tokenizer(words)


@settings(deadline=None, max_examples=200)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_ids_are_those_of_hugging_face(encoder, hugging_face, texts):
    for text in texts:
        (ids,) = encoder.encode([text], at_start=True)
        assert ids.tolist() == hugging_face.encode(text, add_special_tokens=False).ids
    assert [ids.tolist() for ids in encoder.encode(texts)] == [encoder.encode([t])[0].tolist() for t in texts]


@settings(deadline=None, max_examples=200)
@given(text=TEXT)
def test_decoding_the_ids_gives_the_text_and_none_is_a_control_token(encoder, words, text):
    (ids,) = encoder.encode([text], at_start=True)
    assert not {control.id for control in words.controls} & set(ids.tolist())
    detokenizer = Detokenizer(words.table)
    decoded = detokenizer.push(ids.tolist()) + detokenizer.finish()
    if "ByteFallback" in words.text_json:
        # SentencePiece knows `▁` and space as one; a first space and the one it adds are the same, too.
        spaced = text.replace("\u2581", " ")
        assert decoded == (spaced.removeprefix(" ") if words.table.strip_leading_space else spaced)
    else:
        # SmolLM2 has no token for 21 bytes; Hugging Face drops them too.
        known = set(words.table.spelled)
        lost = bytes(b for b in range(256) if bytes([b]) not in known)
        assert decoded == text.encode().translate(None, lost).decode("utf-8", "replace")


def test_ids_are_one_buffer_of_uint32(encoder):
    ids = encoder.encode(["hello", "", "world"])
    assert [part.dtype for part in ids] == [np.dtype("<u4")] * 3
    assert encoder.encode([]) == []


@pytest.mark.parametrize(
    "character", [" ", "\n", "\u3000", "a", "=", "^", "1", "漢", "😀", "<", "e\u0301", " a", "\r\n"]
)
def test_four_megabytes_of_one_character_take_bounded_time(character, folders):
    words = vocabulary.read(folders["chatml"] / "tokenizer.json")
    encoder = TextEncoder(words)
    text = character * (4_000_000 // len(character.encode()))
    began_s = time.process_time()
    (ids,) = encoder.encode([text])
    assert time.process_time() - began_s < 20
    assert b"".join([words.table.spelled[i] for i in ids.tolist()]) == text.encode()


def test_runs_of_white_space_up_to_the_limit_are_exact(folders):
    words = vocabulary.read(folders["chatml"] / "tokenizer.json")
    hugging_face = text_tokenizer(words)
    for text in ("x" + " " * 99_999 + "y", "\n" * 100_000):
        (ids,) = TextEncoder(words).encode([text])
        assert ids.tolist() == hugging_face.encode(text, add_special_tokens=False).ids


def test_text_that_the_pattern_gives_up_on_is_cut_shorter():
    calls = []

    def gives_up(parts):
        calls.append(parts)
        if any(len(part) > 25_000 for part in parts):
            raise ValueError("backtracking")
        sizes = [len(part) for part in parts]
        return np.arange(sum(sizes), dtype="<u4").tobytes(), np.cumsum([0, *sizes], dtype="<u8").tobytes()

    ids, offsets = TextEncoder._ids(["a" * 60_000, "b"], gives_up)
    assert [len(part) for part in calls[1]] == [25_000, 25_000, 10_000, 1]
    assert offsets.tolist() == [0, 60_000, 60_001]
    assert len(ids) == 60_001


def test_a_tokenizer_that_fastokens_cannot_read_is_read_by_tokenizers_and_logged(folders, caplog):
    words = vocabulary.read(folders["mistral"] / "tokenizer.json")
    with caplog.at_level(logging.WARNING, logger=text_encoder.__name__):
        TextEncoder(words)
    assert "using tokenizers" in caplog.text


def test_a_space_is_written_before_the_first_word_of_a_prompt_only(folders):
    encoder = TextEncoder(vocabulary.read(folders["mistral"] / "tokenizer.json"))
    first, later = encoder.encode(["The", "The"], at_start=True)
    assert first.tolist() != later.tolist()
    assert encoder.encode(["The"])[0].tolist() == later.tolist()


def test_white_space_tokens_are_text_and_other_added_tokens_are_not():
    tokenizer = byte_level_bpe(CHATML)
    next_id = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"] += [
        {"id": next_id, "content": "\t\t", **common},
        {"id": next_id + 1, "content": "<tag>", **common},
    ]
    words = vocabulary.parse(tokenizer)
    (ids,) = TextEncoder(words).encode(["a\t\tb<tag>"])
    assert next_id in ids.tolist()
    assert next_id + 1 not in ids.tolist()
    assert words.table.visible[next_id + 1] == b"<tag>"


def test_a_control_token_that_merges_could_make_is_taken_out_of_them():
    tokenizer = byte_level_bpe(CHATML)
    word = max((w for w in tokenizer["model"]["vocab"] if w.isascii() and w.isalpha()), key=len)
    word_id = tokenizer["model"]["vocab"][word]
    tokenizer["added_tokens"].append({"id": word_id, "content": word, "special": True})
    encoder = TextEncoder(vocabulary.parse(tokenizer))
    (ids,) = encoder.encode([word])
    assert word_id not in ids.tolist()
    assert len(ids) > 1


def refused(change, model=CHATML):
    tokenizer = (sentencepiece_bpe if model.sentencepiece else byte_level_bpe)(model)
    change(tokenizer)
    with pytest.raises(FrontendLoadError) as e:
        vocabulary.parse(tokenizer)
    return e.value.message


def test_tokenizers_that_are_not_understood_are_refused_by_name():
    assert "Unigram" in refused(lambda t: t["model"].update(type="Unigram"))
    assert "WordPiece" in refused(lambda t: t.update(decoder={"type": "WordPiece"}))
    assert "none" in refused(lambda t: t.update(decoder=None))
    assert "dropout" in refused(lambda t: t["model"].update(dropout=0.1))
    assert "1 of them" in refused(lambda t: t["model"]["vocab"].pop("<0x41>"), GEMMA)
    assert "Fuse" in refused(lambda t: t["model"].update(byte_fallback=False), MISTRAL)


@pytest.mark.parametrize("content", [None, "not json", "[]", "{}", json.dumps({"model": {"type": "BPE"}})])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FrontendLoadError, match="tokenizer"):
        vocabulary.read(path)
