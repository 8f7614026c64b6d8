"""Which vocabulary `up` and `gateway` use: what was named, where it is kept, what is refused before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from dayzero.config import load, parse
from dayzero.frontend.kimi_k3 import vocabulary_source
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED, VARIABLE
from dayzero.serving.local import kimi_k3
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.fleet import LocalFleet
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.options import Options, for_region
from tests.unit.test_cli import command, run
from tests.unit.test_config_fleet import LOCAL, changed
from tests.unit.test_local_options import FLEET, Kept, changes, ran, settle

__all__ = ["run"]  # a fixture

OTHER = Path("/models/other.tiktoken")
WITHOUT_K3 = parse(
    "infrastructure: {regions: [{name: us-east}]}\n"
    "serving:\n"
    "  models: [{name: m, weights: {source: smollm2}, max_model_tokens: 4096}]\n"
    "  pools: [{name: p, region: us-east, model: m}]\n"
)


def test_the_names_here_are_the_frontends():
    assert (kimi_k3.VARIABLE, kimi_k3.FILE_NAME) == (VARIABLE, vocabulary_source.FILE_NAME)


def test_an_option_wins_over_the_variable_and_both_become_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    named = kimi_k3.named_vocabulary
    for name in ("a.model", "b.model"):
        (tmp_path / name).touch()
    assert named(Path("a.model"), FLEET, {VARIABLE: "b.model"}) == tmp_path / "a.model"
    assert named(None, FLEET, {VARIABLE: "x/../b.model"}) == tmp_path / "b.model"
    assert named(None, FLEET, {VARIABLE: ""}) is None
    assert named(None, FLEET, {}) is None


def test_a_vocabulary_that_is_not_there_is_told_by_who_named_it(tmp_path):
    missing = tmp_path / "none.model"
    with pytest.raises(PreflightError, match=f"^--vocabulary names {missing}, which is no file"):
        kimi_k3.named_vocabulary(missing, FLEET, {VARIABLE: "b.model"})
    with pytest.raises(PreflightError, match=f"^{VARIABLE} names {missing}, which is no file"):
        kimi_k3.named_vocabulary(None, FLEET, {VARIABLE: str(missing)})


@pytest.mark.parametrize(("content", "said"), [(None, "which is no file"), ("no vocabulary\n", "vocabulary")])
def test_the_fleet_files_own_vocabulary_is_told_with_its_line(tmp_path, content, said):
    path = tmp_path / "none.model"
    if content is not None:
        path.write_text(content)
    file = tmp_path / "fleet.yaml"
    file.write_text(changed(serving__models__1__frontend__options={"vocabulary": str(path)}))
    (line,) = [n for n, text in enumerate(file.read_text().splitlines(), 1) if "vocabulary: /" in text]
    with pytest.raises(PreflightError) as raised:
        kimi_k3.vocabulary(load(file), "us-east", tmp_path, fleet_file=str(file))
    assert raised.value.message.startswith(f"{file}:{line}:")
    assert ": serving.models[1].frontend.options.vocabulary: " in raised.value.message
    assert str(path) in raised.value.message
    assert said in raised.value.message
    assert "--vocabulary names" not in raised.value.message


def test_an_option_that_no_model_has_a_use_for_is_refused_and_a_variable_is_left_alone():
    with pytest.raises(PreflightError, match="no model of this fleet has the frontend kimi_k3"):
        kimi_k3.named_vocabulary(OTHER, WITHOUT_K3, {})
    assert kimi_k3.named_vocabulary(None, WITHOUT_K3, {VARIABLE: "x"}) is None
    assert kimi_k3.vocabulary(WITHOUT_K3, "us-east", Path("models"), fleet_file="x") is None


def test_the_vocabulary_in_use_is_told_by_digest_and_path_and_the_shipped_one_as_what_it_is(tmp_path):
    copy = tmp_path / "tiktoken.model"
    copy.write_bytes(SHIPPED.read_bytes())
    told = kimi_k3.vocabulary(FLEET.with_vocabulary(str(copy)), "us-east", tmp_path, fleet_file="x")
    assert told.endswith(f"({copy})")
    assert len(told.split()[0]) == 12
    assert kimi_k3.vocabulary(FLEET, "us-east", tmp_path, fleet_file="x") == kimi_k3.SHIPPED


@pytest.mark.parametrize("content", [None, b"", b"not a vocabulary\n"])
def test_a_named_file_that_is_none_ends_a_start_before_anything_runs(tmp_path, content):
    path = tmp_path / f"{content is None}-{len(content or b'')}.model"
    if content is not None:
        path.write_bytes(content)
    folder, progress = FleetFolder(tmp_path / "run"), Kept()
    with pytest.raises(PreflightError, match="vocabulary"):
        LocalFleet(folder).up(
            FLEET.with_engine("sim").with_ports({"us-east": 18_917, "eu-west": 18_918}),
            fleet_name="x",
            progress=progress,
            given=Options(vocabulary=path),
        )
    assert progress.notes == []
    assert folder.regions() == []


@pytest.mark.parametrize("words", [("up", "--engine", "sim"), ("gateway",)])
def test_a_command_that_names_a_missing_vocabulary_says_so_and_leaves_nothing(run, words):
    result = command(run, *words, "--vocabulary", "/no/such/tiktoken.model")
    assert result.returncode == 1
    assert "/no/such/tiktoken.model, which is no file" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(run.models.iterdir())


def test_a_faulty_script_ends_a_start_with_its_line(tmp_path):
    script = tmp_path / "script.yaml"
    script.write_text("default:\n  finish: never\n")
    fleet = parse(changed(serving__pools__2__sim={"script": str(script)}))
    with pytest.raises(PreflightError, match=r"script\.yaml:2:11: default\.finish: expected stop or length"):
        kimi_k3.check_scripts(fleet, "us-east", fleet_file="x")
    kimi_k3.check_scripts(fleet, "eu-west", fleet_file="x")


def test_a_script_that_is_not_there_is_told_with_the_fleet_files_line(tmp_path):
    script, file = tmp_path / "none.yaml", tmp_path / "fleet.yaml"
    file.write_text(changed(serving__pools__2__sim={"script": str(script)}))
    (line,) = [n for n, text in enumerate(file.read_text().splitlines(), 1) if "script: /" in text]
    with pytest.raises(PreflightError) as raised:
        kimi_k3.check_scripts(load(file), "us-east", fleet_file=str(file))
    said = raised.value.message
    assert said.startswith(f"{file}:{line}:")
    assert said.endswith(f": serving.pools[2].sim.script: names {script}, which is no file")
    file.unlink()
    with pytest.raises(PreflightError, match=rf"^{file}: serving\.pools\[2\]\.sim\.script: names"):
        kimi_k3.check_scripts(
            parse(changed(serving__pools__2__sim={"script": str(script)})), "us-east", fleet_file=str(file)
        )


def test_an_edited_script_or_vocabulary_starts_its_region_anew_and_is_named(tmp_path):
    script, vocabulary = tmp_path / "script.yaml", tmp_path / "tiktoken.model"
    script.write_text("default: {content: one}\n")
    vocabulary.write_bytes(SHIPPED.read_bytes())
    fleet = parse(changed(serving__pools__2__sim={"script": str(script)})).with_vocabulary(str(vocabulary))
    before = {name: kimi_k3.contents(fleet, name, tmp_path) for name in ("us-east", "eu-west")}
    states = {name: replace(ran(name, fleet, Options()), contents=before[name]) for name in before}

    def said():
        return [
            changes(states[name], fleet, contents=kimi_k3.contents(fleet, name, tmp_path)) for name in states
        ]

    assert said() == ["", ""]
    script.write_text("default: {content: two}\n")
    assert said() == [f"the script {script} changed", ""]
    vocabulary.write_bytes(b"")
    assert said()[1] == f"the vocabulary {vocabulary} changed"
    script.unlink()
    assert said()[0] == f"the script {script} changed, the vocabulary {vocabulary} changed"
    states = {name: replace(state, contents=None) for name, state in states.items()}
    assert said() == ["", ""], "a state that an earlier version wrote"


def test_a_vocabulary_laid_into_the_models_folder_counts_as_a_change(tmp_path):
    fleet = parse(changed(serving__models__1__weights={"source": "path", "path": str(tmp_path)}))
    before = kimi_k3.contents(fleet, "us-east", tmp_path)
    state = replace(ran("us-east", fleet, Options()), contents=before)
    file = tmp_path / kimi_k3.FILE_NAME
    file.write_bytes(SHIPPED.read_bytes())
    after = kimi_k3.contents(fleet, "us-east", tmp_path)
    assert changes(state, fleet, contents=after) == f"the vocabulary {file} changed"


def started(options):
    fleet, held = settle(options)
    return {name: ran(name, for_region(fleet, held[name]), held[name]) for name in ("us-east", "eu-west")}


def test_a_region_keeps_the_vocabulary_it_was_started_with():
    states = started(Options("sim", vocabulary=OTHER))
    again, held = settle(Options(), states=states)
    assert held["us-east"].vocabulary == OTHER
    assert changes(states["us-east"], for_region(again, held["us-east"]), held["us-east"]) == ""


def test_another_vocabulary_starts_a_region_anew_and_the_other_keeps_its_own():
    states = started(Options("sim"))
    again, held = settle(Options(vocabulary=OTHER), ["us-east"], states)
    said = [changes(states[name], for_region(again, held[name]), held[name]) for name in held]
    assert said == [f"the vocabulary changes to {OTHER}", ""]
    states = started(Options("sim", vocabulary=Path("/models/first")))
    again, held = settle(Options(vocabulary=OTHER), ["us-east"], states)
    said = [changes(states[name], for_region(again, held[name]), held[name]) for name in held]
    assert said == [f"the vocabulary changes to {OTHER}", ""]


def test_the_fleet_file_may_name_one_and_an_option_wins_over_it():
    named = parse(LOCAL).with_vocabulary("/models/in-the-file")
    fleet = for_region(named, Options(vocabulary=OTHER))
    assert fleet.model("kimi-k3").frontend.options == {"vocabulary": str(OTHER)}
    assert for_region(named, Options()) == named
