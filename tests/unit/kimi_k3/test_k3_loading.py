"""A model's folder to its frontend."""

import json

import numpy as np
import pytest

from dayzero.frontend.conversation import Image, Message, Role
from dayzero.frontend.errors import FrontendError, FrontendLoadError
from dayzero.frontend.kimi_k3 import KimiK3Frontend, load
from dayzero.frontend.kimi_k3.oddities import Oddity
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED
from dayzero.frontend.protocol import ModelFrontend
from tests.unit.kimi_k3.prompts import USER, of


def pads(frontend):
    """Of a picture with 65,536 patches."""
    (span,) = frontend.render(of(Message(Role.USER, (Image(b"", b"", 3584, 3584),))), scope="").media
    return span.length_tokens


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiktoken.model").write_bytes(SHIPPED.read_bytes())
    return tmp_path


def test_a_folder_without_a_preprocessor_has_the_usual_limit(folder):
    frontend = load(folder, environ={})
    assert isinstance(frontend, ModelFrontend)
    assert frontend.vocabulary.source != ""
    assert pads(frontend) == 128 * 128


@pytest.mark.parametrize(
    "config", [{"in_patch_limit": 16_384}, {"media_proc_cfg": {"in_patch_limit": 16_384}}, {}]
)
def test_the_preprocessor_says_how_large_a_picture_is_and_an_option_overrules_it(folder, config):
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    assert pads(load(folder, environ={})) == (64 * 64 if config else 128 * 128)
    assert pads(load(folder, environ={}, image_patch_limit=4096)) == 32 * 32


@pytest.mark.parametrize(
    "content", ["{", '{"in_patch_limit": "many"}', '{"in_patch_limit": 0}', '{"in_patch_limit": true}']
)
def test_a_preprocessor_that_makes_no_sense_is_an_error_of_the_start(folder, content):
    (folder / "preprocessor_config.json").write_text(content)
    with pytest.raises(FrontendLoadError, match=r"preprocessor_config\.json"):
        load(folder, environ={})


def test_a_vocabulary_that_is_named_and_missing_is_an_error_of_the_start(tmp_path):
    with pytest.raises(FrontendLoadError, match="--vocabulary"):
        load(None, vocabulary=tmp_path / "none", environ={})


@pytest.mark.parametrize(("stop", "param"), [([""], "stop[0]"), (["a", "\ud83d"], "stop[1]")])
def test_a_stop_string_that_is_none_is_refused(small_tokenizer, stop, param):
    frontend = KimiK3Frontend(small_tokenizer)
    with pytest.raises(FrontendError) as refused:
        frontend.decoder(frontend.render(of(USER), scope=""), stop=stop)
    assert refused.value.param == param


def test_a_token_is_shown_as_text_and_bytes(small_tokenizer):
    frontend = KimiK3Frontend(small_tokenizer)
    assert frontend.token_text(frontend.vocabulary.specials.open) == ("<|open|>", b"<|open|>")


def test_its_segments_are_its_prompt(small_tokenizer):
    frontend = KimiK3Frontend(small_tokenizer)
    segments = frontend.segments(of(USER))
    assert (
        b"".join(np.array(one.ids, "<u4").tobytes() for one in segments)
        == frontend.render(of(USER), scope="").ids
    )
    assert next(one.text for one in segments if one.kind == "control") == "<|open|>"
    assert frontend.oddities == {oddity.value for oddity in Oddity}


def test_what_it_remembers_is_bounded_by_one_option():
    frontend = load(environ={}, cache_bytes=1_000_003)
    assert frontend.tokenizer.cache_stats().bound_bytes == 200_000
    before = frontend.cache_size()
    assert before.bound_bytes == 1_000_003
    frontend.render(of(USER), scope="tenant")
    assert before.held_bytes < frontend.cache_size().held_bytes < before.bound_bytes
