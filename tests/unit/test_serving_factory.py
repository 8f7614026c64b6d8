"""What the fleet's words become for an engine, without starting one."""

import json
import shutil

import pytest

from dayzero.config import Frontend, Model, Pool, Profile
from dayzero.config.serving import Weights
from dayzero.frontend.kimi_k3.specials import Specials
from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED, VARIABLE
from dayzero.serving.engines.factory import EngineSpec, vllm_config


def spec(tmp_path, **frontend):
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    model = Model(
        name="m",
        weights=Weights(source="path", path=str(folder)),
        max_model_tokens=4096,
        frontend=Frontend(**frontend),
    )
    return EngineSpec(
        pool=Pool(name="p", region="r", model="m"),
        model=model,
        profile=Profile(),
        folder=folder,
        run_dir=tmp_path / "run",
        store_url="",
    )


@pytest.mark.parametrize("named", [True, False])
def test_kimi_k3_on_vllm_gets_a_tokenizer_of_its_own_vocabulary_for_grammars(tmp_path, monkeypatch, named):
    """Named by an option, or beside the weights."""
    monkeypatch.delenv(VARIABLE, raising=False)
    options = {"vocabulary": str(SHIPPED)} if named else {}
    one = spec(tmp_path, kind="kimi_k3", options=options)
    if not named:
        shutil.copy(SHIPPED, one.folder / "tiktoken.model")
    tokenizer = vllm_config(one).tokenizer
    assert tokenizer.parent == one.run_dir
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(Specials(len(load_vocabulary(SHIPPED).ranks)).size))
    assert vllm_config(one).tokenizer == tokenizer


def test_another_model_keeps_the_tokenizer_beside_its_weights(tmp_path):
    assert vllm_config(spec(tmp_path)).tokenizer is None
