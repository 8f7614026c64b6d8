"""Reading text: scalars, places, bounds and files."""

import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.config import FleetError, FleetFileError, FleetInvalidError, load, parse
from dayzero.config.yaml_source import MAX_DEPTH, MAX_NODES, MAX_TEXT_BYTES, Mark, read

LOCAL = "deployments/local.yaml"

SMALL = """\
infrastructure:
  regions:
    - name: here
serving:
  models:
    - name: m
      weights: {source: smollm2}
      max_model_tokens: 4096
  pools:
    - name: p
      region: here
      model: m
"""


def faults_of(text):
    with pytest.raises(FleetInvalidError) as caught:
        parse(text)
    return {fault.path: fault for fault in caught.value.faults}


def test_the_local_fleet_is_two_regions_with_three_replicas_of_smollm2_on_vllm_and_simulated_kimi_k3():
    fleet = load(LOCAL)
    regions = fleet.infrastructure.regions
    assert [(r.name, r.http.host, r.http.port) for r in regions] == [
        ("us-east", "127.0.0.1", 8000),
        ("eu-west", "127.0.0.1", 8001),
    ]
    pool, k3 = fleet.pools("us-east")
    other, other_k3 = fleet.pools("eu-west")
    model = fleet.model("smollm2")
    assert (pool.engine, pool.replicas) == ("vllm", 2)
    assert (other.engine, other.replicas, other.model) == ("vllm", 1, pool.model)
    assert model is not None
    assert model.name == pool.model == "smollm2-135m-instruct"
    assert fleet.profile(pool).kv_cache_bytes == 268_435_456
    assert fleet.policy.limits.max_body_bytes < 10_000_000
    assert {one.model for one in (k3, other_k3)} == {"kimi-k3"}
    assert {(one.engine, one.replicas) for one in (k3, other_k3)} == {("sim", 1)}
    assert fleet.model("kimi-k3[1m]").max_model_tokens == 1_048_576


def test_a_small_fleet_is_filled_with_defaults():
    fleet = parse(SMALL)
    assert fleet.infrastructure.regions[0].http.port == 8000
    assert fleet.policy.limits.max_body_bytes == 67_108_864


@pytest.mark.parametrize(
    "word", ["yes", "no", "on", "off", "y", "010", "0o17", "0x1f", "12-30", "1e", "2026-11-29"]
)
def test_what_yaml_1_1_would_convert_stays_text_as_a_name(word):
    fleet = parse(SMALL.replace("here", word))
    assert fleet.infrastructure.regions[0].name == word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("", None),
        ("~", None),
        ("0", 0),
        ("-7", -7),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("0b11", "0b11"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("=", "="),
        ("9" * 5000, "9" * 5000),
        ("'8000'", "8000"),
        ("!!str 8000", "8000"),
    ],
)
def test_scalars_are_those_of_the_core_schema(text, value):
    source = read(f"a: {text}")
    assert source.faults == []
    assert source.tree == {"a": value}
    assert type(source.tree["a"]) is type(value)


@pytest.mark.parametrize(
    ("old", "new", "path", "said"),
    [
        ("name: here", "name: 10", "infrastructure.regions[0].name", "the number 10; put it in quotes"),
        ("name: here", "name: true", "infrastructure.regions[0].name", "found true; put it in quotes"),
        ("4096", "'4096'", "serving.models[0].max_model_tokens", "found the text '4096'"),
        ("4096", "4096.0", "serving.models[0].max_model_tokens", "found the number 4096.0"),
        ("4096", "true", "serving.models[0].max_model_tokens", "found true"),
        ("4096", "1e400", "serving.models[0].max_model_tokens", "found the number 1e400"),
        (
            "{source: smollm2}",
            "smollm2",
            "serving.models[0].weights",
            "a mapping with the fields source, path",
        ),
    ],
)
def test_nothing_is_converted_into_another_kind(old, new, path, said):
    assert said in faults_of(SMALL.replace(old, new))[path].message


def test_anchors_and_aliases_share_values():
    text = SMALL.replace("here\nserving", "&region here\nserving").replace("region: here", "region: *region")
    assert parse(text).serving.pools[0].region == "here"


def test_an_alias_bomb_is_refused_and_not_expanded():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    source = read("\n".join(rows))
    assert source.tree is None
    assert f"more than {MAX_NODES} values" in source.faults[0].message


def test_an_alias_of_itself_is_refused():
    assert f"more than {MAX_DEPTH} levels" in read("a: &a [*a]").faults[0].message


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000])
def test_deep_nesting_is_refused_with_its_place(text):
    (fault,) = read(text).faults
    assert "levels deep" in fault.message
    assert fault.line == 1


def test_too_many_values_are_refused_before_they_are_all_read():
    (fault,) = read("a: [" + "x," * 100_000 + "]").faults
    assert fault.message == f"not YAML: more than {MAX_NODES} values"


def test_a_duplicate_key_is_refused_at_the_second_one():
    fault = faults_of(SMALL.replace("    - name: p\n", "    - name: p\n      name: q\n"))[
        "serving.pools[0].name"
    ]
    assert (fault.line, fault.column) == (11, 7)
    assert "line 10" in fault.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: !!python/object:os.system x", "tag"),
        ("a: !!timestamp 2026-11-29", "tag"),
        ("a: !!int ten", "tag"),
        ("a: !!set {b}", "tag"),
        ("? [a]\n: b", "as a key"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "merge keys"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("a:\n\tb: 1", "not tabs"),
        ("a: *nowhere", "undefined alias"),
        ("a: 'open", "not YAML"),
        ("a: \x00", "U+0000"),
        ("a: \ud800", "U+D800"),
    ],
)
def test_what_is_not_read_is_said_with_its_line(text, said):
    (fault,) = read(text).faults
    assert said in fault.message
    assert fault.line in {1, 2, 3}


def test_places_count_from_one():
    source = read("a:\n  - b: 1\n    c: two\n")
    assert source.mark(("a", 0, "c")) == Mark(3, 8)
    assert source.mark(("a", 0, "c"), key=True) == Mark(3, 5)
    assert source.mark(("a", 0, "missing")) == Mark(2, 5)


@given(st.text())
def test_reading_any_text_ends_in_a_fleet_or_a_fleet_error(text):
    with pytest.raises(FleetError):
        parse(text)


@given(
    st.recursive(
        st.text(max_size=5) | st.integers() | st.booleans() | st.none() | st.floats(), st.lists, max_leaves=8
    )
)
def test_any_value_in_any_place_ends_in_a_fleet_or_a_fleet_error(value):
    for field in ("name: here", "name: m", "{source: smollm2}", "max_model_tokens: 4096", "region: here"):
        key = field.split(":", 1)[0] + ": " if ":" in field and not field.startswith("{") else ""
        try:
            parse(SMALL.replace(field, f"{key}{value!r}", 1))
        except FleetError as e:
            assert str(e)  # either outcome is fine, another exception is not


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"# only a comment\n---\n"), "is empty"),
        (lambda path: path.write_bytes("name: café".encode("latin-1")), ":1: is not UTF-8"),
        (lambda path: path.write_bytes("a: 1".encode("utf-16")), "is not UTF-8"),
        (lambda path: path.write_bytes(b"#" * (MAX_TEXT_BYTES + 1)), "larger than"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
)
def test_a_file_without_text_says_why(tmp_path, make, said):
    path = tmp_path / "fleet.yaml"
    make(path)
    with pytest.raises(FleetFileError) as caught:
        load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "text", "12", "- a"])
def test_a_file_that_is_no_mapping_names_the_sections(text):
    with pytest.raises(FleetInvalidError, match="infrastructure, serving and policy"):
        parse(text)


def test_a_byte_order_mark_is_ignored(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load(path) == parse(SMALL)


def test_fleets_and_their_errors_pickle():
    fleet = parse(SMALL)
    again = pickle.loads(pickle.dumps(fleet))
    assert again == fleet
    assert again.hash == fleet.hash
    with pytest.raises(FleetInvalidError) as caught:
        parse("a: 1")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.name, copy.faults, str(copy)) == ("fleet.yaml", caught.value.faults, str(caught.value))


def test_importing_the_fleet_file_loads_neither_ray_nor_torch_nor_vllm():
    code = (
        "import sys, dayzero.config\n"
        f"dayzero.config.load({LOCAL!r})\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'ray', 'torch', 'vllm', 'numpy'}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["platform", "router", "deployments"])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
