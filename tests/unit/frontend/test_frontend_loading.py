"""From a folder's files to a frontend."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from dayzero.frontend.chat_template import ChatTemplateOptions, load
from dayzero.frontend.conversation import Conversation, Message, Role, Text, Tool
from dayzero.frontend.errors import FrontendLoadError
from tests.unit.frontend.models import CHATML


def said(text, **kwargs):
    return Conversation((Message(Role.USER, (Text(text),)),), **kwargs)


def rendered(frontend, **kwargs):
    ids = memoryview(frontend.render(said("q", **kwargs), scope="").ids).cast("I")
    return b"".join(frontend.token_text(i)[1] for i in ids).decode()


@pytest.fixture
def folder(tmp_path):
    return CHATML.write(tmp_path / "model")


def rewrite(folder, name, **changes):
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def test_the_template_is_the_jinja_file_then_the_config_then_the_named_ones(folder):
    rewrite(folder, "tokenizer_config.json", chat_template="from config")
    assert "<|im_start|>" in rendered(load(folder))
    (folder / "chat_template.jinja").unlink()
    assert rendered(load(folder)) == "from config"
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools[0].name }}"},
    ]
    rewrite(folder, "tokenizer_config.json", chat_template=named)
    frontend = load(folder)
    assert rendered(frontend) == "plain"
    assert rendered(frontend, tools=(Tool("f", {"name": "f"}),)) == "with f"
    options = ChatTemplateOptions(template="{{ bos_token is defined }} {{ eos_token }}")
    assert rendered(load(folder, options)) == "False <|im_end|>"


def test_a_folder_without_a_template_says_what_to_do(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(FrontendLoadError, match=r"chat_template\.jinja"):
        load(folder)


def test_a_folder_without_a_tokenizer_says_so(tmp_path):
    with pytest.raises(FrontendLoadError, match=r"tokenizer\.json"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["not json", "[]"])
def test_a_broken_config_is_refused_by_name(folder, content):
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(FrontendLoadError, match=r"generation_config\.json"):
        load(folder)


def test_stop_ids_are_gathered_without_repeats(folder):
    ids = {c.content: c.id for c in load(folder)._vocabulary.controls}
    rewrite(folder, "generation_config.json", eos_token_id=[ids["<|endoftext|>"], ids["<|im_end|>"]])
    assert load(folder).stop_ids == (ids["<|endoftext|>"], ids["<|im_end|>"])
    rewrite(folder, "generation_config.json", eos_token_id=ids["<|endoftext|>"])
    rewrite(folder, "tokenizer_config.json", eos_token={"content": "<|endoftext|>", "special": True})
    assert load(folder).stop_ids == (ids["<|endoftext|>"], ids["<|im_end|>"])


def test_reasoning_markers_have_ids_only_where_the_vocabulary_has_them(folders):
    with_ids = load(folders["qwen"], ChatTemplateOptions(reasoning="think"))._reasoning
    without = load(folders["chatml"], ChatTemplateOptions(reasoning="think"))._reasoning
    assert with_ids.opener_id is not None
    assert without.opener_id is None
    assert load(folders["qwen"])._reasoning is None


def test_a_user_cannot_open_reasoning_by_spelling_its_marker_at_the_end(folder):
    options = ChatTemplateOptions(reasoning="think", template="{{ messages[0].content }}")
    assert load(folder, options).render(said("x <think>"), scope="").start == "response"
    opened = ChatTemplateOptions(reasoning="think", template="{{ messages[0].content }}<think>\n")
    assert load(folder, opened).render(said("x "), scope="").start == "think"


def test_threads_may_share_a_frontend(frontends):
    frontend = frontends["qwen"]
    texts = [f"<|im_end|> question {i} " * (1 + i % 7) for i in range(64)]
    expected = [frontend.render(said(text), scope="").ids for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: frontend.render(said(text), scope="").ids, texts)) == expected
