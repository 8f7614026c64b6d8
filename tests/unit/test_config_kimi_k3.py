"""What a fleet file may say of Kimi K3: its frontend's options, a model without weights, a script."""

import pytest

from dayzero.config import FleetInvalidError, parse
from tests.unit.test_config_fleet import LOCAL, changed, faults_of


@pytest.mark.parametrize(
    ("path", "value", "at", "said"),
    [
        ("serving__pools__2__engine", "vllm", "serving.pools[2].engine", "`source: none`): only sim can"),
        (
            "serving__models__1__frontend",
            {"kind": "chat_template"},
            "serving.models[1].frontend.kind",
            "comes with the weights",
        ),
        (
            "serving__models__1__weights",
            {"source": "smollm2"},
            "serving.models[1].frontend.kind",
            "SmolLM2's weights do not know",
        ),
        (
            "serving__models__1__frontend__options",
            {"vocabulery": "/x"},
            "serving.models[1].frontend.options.vocabulery",
            "unknown field; did you mean 'vocabulary'?",
        ),
        (
            "serving__models__1__frontend__options",
            {"vocabulary": "tiktoken.model"},
            "serving.models[1].frontend.options.vocabulary",
            "expected an absolute path",
        ),
        (
            "serving__models__1__frontend__options",
            {"image_patch_limit": "65536"},
            "serving.models[1].frontend.options.image_patch_limit",
            "expected a whole number, 1 or more, found the text '65536'",
        ),
        (
            "serving__models__1__frontend__options",
            {"cache_bytes": "some"},
            "serving.models[1].frontend.options.cache_bytes",
            "expected a number of bytes, 1 or more",
        ),
        (
            "serving__pools__0__sim",
            {"script": "/script.yaml"},
            "serving.pools[0].sim.script",
            "only for a model of the frontend kimi_k3",
        ),
    ],
)
def test_what_cannot_be_together_is_refused_where_it_stands(path, value, at, said):
    faults = faults_of(changed(**{path: value}))
    assert said in faults[at]


def test_a_model_without_weights_stays_simulated_whatever_engine_is_asked_for():
    fleet = parse(LOCAL).with_engine("vllm")
    engines = {(pool.model, pool.engine) for pool in fleet.serving.pools}
    assert engines == {("smollm2-135m-instruct", "vllm"), ("kimi-k3", "sim")}


def test_a_vocabulary_is_that_of_every_kimi_k3_model_and_of_no_other():
    before = parse(LOCAL)
    after = before.with_vocabulary("/models/tiktoken.model")
    options = {model.name: model.frontend.options for model in after.serving.models}
    assert options == {"smollm2-135m-instruct": {}, "kimi-k3": {"vocabulary": "/models/tiktoken.model"}}
    assert before.hash_of("us-east") != after.hash_of("us-east")
    with pytest.raises(FleetInvalidError, match="an absolute path"):
        before.with_vocabulary("tiktoken.model")


def test_kimi_k3_is_found_by_its_alias():
    assert parse(LOCAL).model("kimi-k3[1m]").name == "kimi-k3"
