"""What a fleet may say: every fault at once, names, sums, nesting; hashes, overrides and the reference page."""

import pathlib

import pytest
import yaml

from dayzero.config import Fleet, FleetError, FleetInvalidError, load, parse
from dayzero.config.reference import page
from dayzero.config.schema import is_record, records, words

LOCAL = pathlib.Path("deployments/local.yaml").read_text()


def changed(**at):
    """The local fleet with values set at `section__list__0__field` paths."""
    tree = yaml.safe_load(LOCAL)
    for path, value in at.items():
        here = tree
        *steps, last = [int(step) if step.isdigit() else step for step in path.split("__")]
        for step in steps:
            here = here.setdefault(step, {}) if isinstance(here, dict) else here[step]
        here[last] = value
    return yaml.safe_dump(tree, sort_keys=False)


def faults_of(text):
    with pytest.raises(FleetInvalidError) as caught:
        parse(text)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_all_faults_of_all_kinds_are_reported_at_once_in_the_order_of_the_file():
    text = (
        LOCAL.replace("cloud: local ", "cloud: moon ")
        .replace("max_num_seqs: 16 ", "max_num_seq: 16 ")
        .replace("region: us-east\n", "region: us-eest\n", 1)
        .replace("max_attempts: 3", "max_attempts: three")
        .replace("  drain_timeout_s: 60", "  drain_timeout_s: 60\n  drain_timeout_s: 61")
    )
    with pytest.raises(FleetInvalidError) as caught:
        parse(text, "my.yaml")
    lines = text.splitlines()
    found = [
        (fault.path, lines[fault.line - 1][fault.column - 1 :].split()[0]) for fault in caught.value.faults
    ]
    assert found == [
        ("infrastructure.regions[0].cloud", "moon"),
        ("serving.models[0].profiles[0].max_num_seq", "max_num_seq:"),
        ("serving.pools[0].region", "us-eest"),
        ("policy.retry.max_attempts", "three"),
        ("policy.drain_timeout_s", "drain_timeout_s:"),
    ]
    assert (
        str(caught.value)
        .splitlines()[1]
        .startswith("my.yaml:46:11: serving.models[0].profiles[0].max_num_seq: ")
    )
    assert "did you mean 'max_num_seqs'?" in str(caught.value)
    assert "did you mean 'us-east'?" in str(caught.value)


def test_a_missing_field_is_reported_at_its_parent_with_what_it_should_be():
    text = LOCAL.replace(
        "    - name: us-east-smollm2\n      region: us-east\n", "    - name: us-east-smollm2\n"
    )
    with pytest.raises(FleetInvalidError) as caught:
        parse(text)
    (fault,) = caught.value.faults
    assert fault.path == "serving.pools[0].region"
    assert text.splitlines()[fault.line - 1].strip() == "- name: us-east-smollm2"
    assert "is missing; expected a name" in fault.message


def test_missing_sections_are_named():
    assert set(faults_of("policy: {}")) == {"infrastructure", "serving"}


@pytest.mark.parametrize(
    ("path", "value", "at", "said"),
    [
        (
            "serving__pools__0__model",
            "smollm2",
            "serving.pools[0].model",
            "is an alias; write 'smollm2-135m-instruct'",
        ),
        ("serving__pools__0__model", "llama", "serving.pools[0].model", "no model is called 'llama'"),
        ("serving__pools__0__profile", "defualt", "serving.pools[0].profile", "did you mean 'default'?"),
        (
            "serving__pools__0__max_ongoing_requests",
            15,
            "serving.pools[0].max_ongoing_requests",
            "max_num_seqs (16)",
        ),
        (
            "serving__pools__0__replicas",
            4,
            "infrastructure.regions[0].ray.logical_cpus",
            "ask for 6 CPUs, it has 5",
        ),
        (
            "serving__models__0__max_model_tokens",
            8193,
            "serving.models[0].max_model_tokens",
            "trained for 8192",
        ),
        (
            "serving__models__0__default_max_tokens",
            8192,
            "serving.models[0].default_max_tokens",
            "room for a prompt",
        ),
        ("serving__models__0__weights", {"source": "path"}, "serving.models[0].weights.path", "is missing"),
        (
            "serving__models__0__weights",
            {"source": "smollm2", "path": "/x"},
            "serving.models[0].weights.path",
            "only with `source: path`",
        ),
        (
            "serving__models__0__weights",
            {"source": "path", "path": "x"},
            "serving.models[0].weights.path",
            "an absolute path",
        ),
        (
            "serving__models__0__profiles__0__match_unit_tokens",
            24,
            "serving.models[0].profiles[0].match_unit_tokens",
            "must divide block_tokens (32)",
        ),
        (
            "serving__models__0__profiles__0__block_tokens",
            8208,
            "serving.models[0].profiles[0].block_tokens",
            "longer than max_model_tokens",
        ),
        (
            "serving__models__0__profiles__0__max_num_batched_tokens",
            15,
            "serving.models[0].profiles[0].max_num_batched_tokens",
            "max_num_seqs (16)",
        ),
        (
            "serving__models__0__profiles__0__kv_cache_bytes",
            "179 MiB",
            "serving.models[0].profiles[0].kv_cache_bytes",
            "needs 188743680 bytes",
        ),
        (
            "serving__models__0__profiles__0__dtype",
            "float32",
            "serving.models[0].profiles[0].kv_cache_bytes",
            "needs 377487360 bytes",
        ),
        (
            "serving__models__0__aliases",
            ["smollm2", "smollm2"],
            "serving.models[0].aliases[1]",
            "a name or alias of a model already",
        ),
        (
            "policy__canary__timeout_s",
            600,
            "policy.canary.timeout_s",
            "less than limits.request_timeout_s (600)",
        ),
        (
            "policy__regions__heartbeat_s",
            3.0,
            "policy.regions.heartbeat_s",
            "less than lost_after_s (3)",
        ),
        (
            "policy__regions__spill__max_age_s",
            1.0,
            "policy.regions.spill.max_age_s",
            "more than probe_period_s + probe_timeout_s (1)",
        ),
        (
            "policy__regions__residency",
            {"acme": ["us-eest"]},
            "policy.regions.residency.acme[0]",
            "did you mean 'us-east'",
        ),
        (
            "policy__regions__residency",
            {"acme": []},
            "policy.regions.residency.acme",
            "could be served nowhere",
        ),
        (
            "infrastructure__regions__0__http__internal_url",
            "http://us-east:8000/v1",
            "infrastructure.regions[0].http.internal_url",
            "scheme, host and port only",
        ),
        (
            "infrastructure__regions__0__ray__dashboard_port",
            8000,
            "infrastructure.regions[0].ray.dashboard_port",
            "port 8000 is us-east's http.port too",
        ),
        ("serving__pools", [], "serving.pools", "a list of one pool or more"),
        (
            "serving__models__0__frontend__options",
            {"a": [1]},
            "serving.models[0].frontend.options.a",
            "text, a number",
        ),
    ],
)
def test_what_cannot_be_together_is_refused_where_it_stands(path, value, at, said):
    faults = faults_of(changed(**{path: value}))
    assert said in faults[at]


def test_two_regions_on_one_port_are_refused():
    region = {"name": "eu-west", "ray": {"gcs_port": 6380, "dashboard_port": 8266}}
    text = changed(infrastructure__regions=[{"name": "us-east"}, region])
    assert faults_of(text) == {
        "infrastructure.regions[1].http.port": "port 8000 is us-east's http.port too; local regions share one machine"
    }


def test_a_model_that_no_pool_serves_is_refused():
    models = [
        *yaml.safe_load(LOCAL)["serving"]["models"],
        {"name": "other", "weights": {"source": "smollm2"}},
    ]
    models[-1]["max_model_tokens"] = 4096
    assert "no pool serves 'other'" in faults_of(changed(serving__models=models))["serving.models[2].name"]


def test_two_of_one_name_are_refused():
    pools = yaml.safe_load(LOCAL)["serving"]["pools"]
    pools[0]["replicas"] = 1
    assert faults_of(changed(serving__pools=[pools[0], *pools])) == {
        "serving.pools[1].name": "'us-east-smollm2' is the name of another pool"
    }


def test_a_hash_names_content_and_nothing_else():
    fleet = parse(LOCAL)
    tree = yaml.safe_load(LOCAL)
    tree["serving"]["pools"][0]["profile"] = "default"
    tree["serving"]["models"][0]["frontend"]["options"] = {}
    reordered = parse(yaml.safe_dump(tree, sort_keys=True))
    assert reordered.hash == fleet.hash
    assert reordered.serving.hash == fleet.serving.hash


def test_the_order_of_options_does_not_change_a_hash():
    hashes = {
        parse(changed(serving__models__0__frontend__options=options)).hash
        for options in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    }
    assert len(hashes) == 1


def test_a_change_of_one_section_leaves_the_other_hashes():
    before, after = parse(LOCAL), parse(changed(policy__drain_timeout_s=5))
    assert before.policy.hash != after.policy.hash
    assert before.hash != after.hash
    assert before.serving.hash == after.serving.hash
    assert before.infrastructure.hash == after.infrastructure.hash


def test_with_engine_changes_every_pool_and_only_that():
    before = parse(LOCAL)
    after = before.with_engine("sim")
    assert {pool.engine for pool in after.serving.pools} == {"sim"}
    assert before.serving.pools[0].engine == "vllm"
    assert after.with_engine("vllm") == before


def test_with_engine_refuses_an_engine_that_is_none():
    with pytest.raises(
        FleetInvalidError, match="expected vllm or sim, found the text 'smi'; did you mean 'sim'"
    ):
        parse(LOCAL).with_engine("smi")


def test_with_ports_moves_gateways_and_is_checked_as_the_file_is():
    fleet = parse(LOCAL)
    moved = fleet.with_ports({"us-east": 8001, "eu-west": 8000})
    assert [region.http.port for region in moved.infrastructure.regions] == [8001, 8000]
    assert fleet.with_ports({"eu-west": 9001}).region("us-east") == fleet.region("us-east")
    with pytest.raises(FleetInvalidError) as caught:
        fleet.with_ports({"us-east": 70_000})
    assert [fault.path for fault in caught.value.faults] == ["infrastructure.regions[0].http.port"]
    with pytest.raises(FleetInvalidError, match="dashboard_port: port 8265"):
        fleet.with_ports({"us-east": 8265})
    with pytest.raises(FleetError, match="no region is called 'us-eat'; did you mean 'us-east'"):
        fleet.with_ports({"us-eat": 9001})


@pytest.mark.parametrize(
    ("path", "value", "changes"),
    [
        ("serving__pools__1__max_ongoing_requests", 100, {"eu-west"}),
        ("infrastructure__regions__1__ray__logical_cpus", 5, {"eu-west"}),
        ("infrastructure__regions__0__redis", {"url": "redis://store:6379"}, {"us-east"}),
        ("infrastructure__regions__1__http__port", 8005, {"eu-west"}),  # us-east is told while it runs
        ("infrastructure__regions__1__http__internal_url", "http://eu:1", {"eu-west", "us-east"}),
        ("serving__models__0__default_max_tokens", 100, {"eu-west", "us-east"}),
        ("policy__drain_timeout_s", 5, {"eu-west", "us-east"}),
    ],
)
def test_a_regions_hash_changes_with_what_the_region_is_made_of(path, value, changes):
    before, after = parse(LOCAL), parse(changed(**{path: value}))
    names = ("us-east", "eu-west")
    assert {name for name in names if before.hash_of(name) != after.hash_of(name)} == changes
    assert before.hash_of("us-east") != before.hash_of("eu-west")


@pytest.mark.parametrize(
    "url",
    [
        "redis://store:6379/0",
        "redis://store",
        "rediss://user:pass@store.example.com:6380/2",
        "redis://[::1]:6379",
        "unix:///run/valkey.sock",
        "unix://user:pass@/run/valkey.sock?db=1",
    ],
)
def test_a_regions_store_is_named_by_a_url(url):
    redis = parse(changed(infrastructure__regions__0__redis={"url": url})).region("us-east").redis
    assert redis.url == url
    assert "pass" not in repr(redis)


@pytest.mark.parametrize(
    "url",
    [
        "store:6379",
        "http://store:6379",
        "redis://",
        "redis://:6379",
        "redis://store:70000",
        "redis://store:port",
        "redis://store/one",
        "redis://store:6379 ",
        "unix://valkey.sock",
        "unix:///",
        "/run/valkey.sock",
    ],
)
def test_what_names_no_store_is_refused_with_the_forms_there_are(url):
    fault = faults_of(changed(infrastructure__regions__0__redis={"url": url}))[
        "infrastructure.regions[0].redis.url"
    ]
    assert "redis://HOST:PORT/0, rediss://HOST:PORT/0 for TLS, or unix:///PATH/TO.sock" in fault


def test_a_fault_in_a_stores_url_shows_no_password():
    url = "redis://admin:s3@cr/et@store:99999/0"
    fault = faults_of(changed(infrastructure__regions__0__redis={"url": url}))[
        "infrastructure.regions[0].redis.url"
    ]
    assert "found the text" in fault
    for word in ("admin", "s3", "cr", "et@"):
        assert word not in fault.split("found the text")[1]


def test_an_embedded_store_has_room_to_work():
    faults = faults_of(changed(infrastructure__regions__0__redis={"memory_bytes": "1 MiB"}))
    assert list(faults) == ["infrastructure.regions[0].redis.memory_bytes"]


def test_a_fleet_cannot_be_changed():
    fleet = parse(LOCAL)
    with pytest.raises(ValueError, match="frozen"):
        fleet.policy.drain_timeout_s = 1


def test_every_field_says_what_it_expects_and_what_it_is():
    for path, record in records(Fleet):
        assert record.__doc__
        for name, field in record.model_fields.items():
            annotation = record.__annotations__[name]
            assert field.description or is_record(annotation), (path, name)
            assert words(annotation)


def test_the_reference_page_is_what_the_schema_says():
    assert pathlib.Path("docs/reference/fleet.md").read_text() == page(), (
        "run: python -m dayzero.config.reference > docs/reference/fleet.md"
    )


def test_the_local_file_is_found_by_path_and_named_in_faults(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(LOCAL.replace("cloud: local ", "cloud: moon "))
    with pytest.raises(FleetInvalidError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:10:14: infrastructure.regions[0].cloud: ")
