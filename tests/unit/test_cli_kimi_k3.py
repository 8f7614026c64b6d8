"""`dayzero prompt` and `dayzero decode`: what they print is what a gateway does, and every fault says what to do."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dayzero.api.chat.conversation import conversation
from dayzero.api.chat.request import ChatCompletionRequest
from dayzero.api.contracts import MOONSHOT
from dayzero.cli.main import run
from dayzero.cli.model_frontend import named_frontend
from dayzero.cli.prompt import prompt_of, record
from dayzero.engine.types import unpack_ids
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED
from tests.unit.kimi_k3.answers import END, C, O, Raw, call, ids_of
from tests.unit.kimi_k3.golden import goldens

ROOT = Path(__file__).resolve().parents[2]
HELLO = {"messages": [{"role": "user", "content": "Hello <|open|> é"}], "reasoning_effort": "none"}
SAID = ("hm", C("think"), O("response"), "Grüße 😀", C("response"), O("tools"))
CALLS = (call("look", ("q", "string", "a\n"), ("n", "number", "2")), call("stop", index=2), C("tools"))


@pytest.fixture(scope="module")
def small_k3():
    return named_frontend("kimi-k3", SHIPPED)


@pytest.fixture(scope="module")
def k3(small_k3):
    return small_k3.frontend


@pytest.fixture
def dayzero(monkeypatch, capsys):
    """A command → its exit code, standard output and standard error. `-` reads `stdin`."""

    def command(*words, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = run([str(word) for word in words])
        except SystemExit as left:
            code = left.code
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return command


@pytest.fixture
def smollm2_is_here(smollm2_folder, tmp_path, monkeypatch):
    """As a fleet that ran once leaves it."""
    (tmp_path / "models").symlink_to(smollm2_folder.parent)
    monkeypatch.setenv("DAYZERO_RUN", str(tmp_path))


def small(*words):
    return (*words, "--vocabulary", SHIPPED)


def as_bytes(value):
    return json.dumps(value).encode()


def test_a_body_becomes_the_ids_that_a_gateway_renders(dayzero, k3, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "whatever", **HELLO}))
    code, out, _ = dayzero(*small("prompt", body, "--json"))
    told = json.loads(out)
    request = msgspec.convert({"model": "m"} | HELLO, ChatCompletionRequest)
    prompt = k3.render(conversation(request, MOONSHOT), scope="")
    assert code == 0
    assert set(told) == {"prompt_token_ids", "n", "text", "segments", "vocabulary"}
    assert told["prompt_token_ids"] == unpack_ids(prompt.ids).tolist()
    assert told["n"] == prompt.tokens
    assert told["vocabulary"]["sha256"] == k3.vocabulary.digest
    assert told["vocabulary"]["size"] == k3.vocabulary.size


def test_the_segments_are_the_prompt_and_tell_control_from_text(dayzero, k3):
    _, out, _ = dayzero(*small("prompt", "-", "--json"), stdin=as_bytes(HELLO))
    told = json.loads(out)
    segments = told["segments"]
    assert [i for one in segments for i in one["ids"]] == told["prompt_token_ids"]
    assert "".join(one["text"] for one in segments) == told["text"]
    ranks = k3.vocabulary.specials.ranks
    for one in segments:
        assert {i >= ranks for i in one["ids"]} == {one["kind"] == "control"}
    (user,) = [one for one in segments if "Hello" in one["text"]]
    assert (user["kind"], user["text"]) == ("text", "Hello <|open|> é")


def test_a_person_sees_every_segment_on_a_line_of_its_own(dayzero):
    body = {"messages": [{"role": "user", "content": "tab\there \x1b[31m" + "long " * 400}]}
    code, out, _ = dayzero(*small("prompt", "-"), stdin=as_bytes(body))
    assert code == 0
    assert '"tab\\there \\u001b[31mlong' in out
    assert "characters)" in out
    assert "thinking_effort=max" not in out or "…" in out
    assert out.count("<|end_of_msg|>") == 2
    assert max(map(len, out.splitlines()[3:])) < 130


@pytest.mark.parametrize(
    "body",
    [HELLO, {"messages": [{"role": "user", "content": "ü"}, {"role": "assistant", "content": "x"}]}],
)
def test_another_models_prompt_is_shown_in_its_own_segments(dayzero, smollm2, smollm2_is_here, body):
    code, out, _ = dayzero("prompt", "-", "--model", "smollm2", "--json", stdin=as_bytes(body))
    told = json.loads(out)
    request = msgspec.convert({"model": "m"} | body, ChatCompletionRequest)
    assert code == 0
    assert (
        told["prompt_token_ids"] == unpack_ids(smollm2.render(conversation(request), scope="").ids).tolist()
    )
    assert [i for one in told["segments"] for i in one["ids"]] == told["prompt_token_ids"]
    assert told["segments"][0] == {
        "kind": "control",
        "text": "<|im_start|>",
        "ids": told["segments"][0]["ids"],
    }


def as_body(request):
    """A golden request is the encoder's input; as a body it says the same in the API's words."""
    body = {key: value for key, value in request.items() if key not in ("thinking", "thinking_effort")}
    if request.get("thinking") is False:
        return body | {"thinking": {"type": "disabled"}}
    return body | {"reasoning_effort": request["thinking_effort"]}


def told_by_a_body(request):
    """The API always has an effort; the encoder also takes none."""
    return request.get("thinking") is False or "thinking_effort" in request


def test_golden_prompts_come_out_of_a_body(k3_vocabulary):
    named = named_frontend("kimi-k3", k3_vocabulary)
    cases = [case for case in goldens() if told_by_a_body(case["request"])]
    assert len(cases) > 5
    for case in cases:
        told = record(*prompt_of(as_bytes(as_body(case["request"])), named), named)
        assert told["prompt_token_ids"] == case["prompt_token_ids"], case["id"]
        assert (told["n"], told["text"]) == (case["n"], case["text"])


@pytest.mark.parametrize(
    ("words", "stdin", "code", "says"),
    [
        (("prompt", "-"), b"{", 1, "not valid JSON"),
        (("prompt", "-"), b"", 1, "empty"),
        (("prompt", "-"), b"[]", 1, "shape"),
        (("prompt", "-"), as_bytes({"messages": []}), 1, "messages"),
        (("prompt", "-"), as_bytes(HELLO | {"temperature": 2}), 1, "temperature"),
        (("prompt", "-"), as_bytes({"messages": [{"role": "user", "content": "x", "partial": True}]}), 1, "messages[0].partial"),
        (("prompt", "-"), as_bytes(HELLO | {"top_logprobs": 2}), 1, "logprobs"),
        (("prompt", "-"), as_bytes(HELLO | {"min_tokens": 9, "max_tokens": 3}), 1, "min_tokens"),
        (("prompt", "no/such/file"), b"", 1, "Name a file"),
        (("prompt", "/"), b"", 1, "Name a file"),
        (("prompt", "--jsn"), b"", 2, "--jsn"),
        (("prompt",), b"", 2, "FILE"),
        (("prompt", "-", "--dialect", "sms"), b"", 2, "dialect"),
        (("prompt", "-", "--model", "gpt"), as_bytes(HELLO), 2, "use one of"),
        (("prompt", "-", "--model", "smollm2", "--vocabulary", SHIPPED), as_bytes(HELLO), 2, "--vocabulary"),
        (("prompt", "-", "--vocabulary", "no/such"), as_bytes(HELLO), 1, "tiktoken.model"),
        (("decode", "-"), b"[1, 2", 1, "not JSON"),
        (("decode", "-"), b"\xff", 1, "not JSON"),
        (("decode", "-"), b"[" * 100_000, 1, "not JSON"),
        (("decode", "-"), b"9" * 10_000, 1, "not JSON"),
        (("decode", "-"), b'{"ids": [1]}', 1, "no list"),
        (("decode", "-"), b'[1, "2"]', 1, "Item 1"),
        (("decode", "-"), b"[1.0]", 1, "Item 0"),
        (("decode", "-"), b"[true]", 1, "Item 0"),
        (("decode", "-"), b"[0, 1, -1]", 1, "Item 2"),
        (("decode", "-"), b"[1000000]", 1, "Item 0"),
        (("decode", "no/such/file"), b"", 1, "Name a file"),
        (("decode", "-", "--split", "-1"), b"[]", 2, "--split"),
        (("decode", "-", "--split", "x"), b"[]", 2, "--split"),
        (("decode", "-", "--start", "tools"), b"[]", 2, "--start"),
        (("decode", "-", "--finish", "abort"), b"[]", 2, "--finish"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_with_what_to_do(dayzero, words, stdin, code, says):
    vocabulary = () if "--vocabulary" in words or "--model" in words else ("--vocabulary", SHIPPED)
    got, out, err = dayzero(*words, *vocabulary, stdin=stdin)
    assert got == code, err
    assert says in " ".join((out + err).split())
    assert "Traceback" not in err


def test_a_failure_is_json_too(dayzero):
    code, out, err = dayzero(*small("prompt", "-", "--json"), stdin=b"{")
    assert code == 1
    assert json.loads(out)["error"]["message"] in err


@pytest.mark.parametrize("split", [0, 1, 2, 3, 7, 1000])
def test_ids_become_an_answer_however_they_are_split(dayzero, k3, split):
    ids = ids_of(k3.tokenizer, SAID, CALLS, C("message"), END)
    code, out, _ = dayzero(*small("decode", "-", "--json", "--split", split), stdin=as_bytes(ids))
    assert code == 0
    assert json.loads(out) == {
        "reasoning_content": "hm",
        "content": "Grüße 😀",
        "tool_calls": [
            {"name": "look", "arguments": '{"q": "a\\n", "n": 2}'},
            {"name": "stop", "arguments": "{}"},
        ],
        "finish_reason": "tool_calls",
        "degraded": [],
    }


@pytest.mark.parametrize(
    ("pieces", "words", "finish"),
    [
        (("hi", C("response"), C("message"), END), (), "stop"),
        (("hi",), (), "length"),
        (("hi",), ("--finish", "stop"), "stop"),
        (("hi", C("response"), C("message"), END), ("--finish", "length"), "length"),
        ((), (), "length"),
    ],
)
def test_ids_without_the_stop_id_were_cut_unless_told_otherwise(dayzero, k3, pieces, words, finish):
    ids = ids_of(k3.tokenizer, *pieces)
    stdin = as_bytes(ids)
    _, out, _ = dayzero(*small("decode", "-", "--json", "--start", "response", *words), stdin=stdin)
    answer = json.loads(out)
    assert answer["finish_reason"] == finish
    assert answer["content"] == ("hi" if pieces else "")
    assert answer["reasoning_content"] == ""


def test_a_person_sees_the_parts_the_counts_and_what_was_mended(dayzero, k3):
    ids = ids_of(k3.tokenizer, "hm\x1b[2J", O("response"), "text", Raw(k3.vocabulary.size - 1), *CALLS, END)
    code, out, _ = dayzero(*small("decode", "-"), stdin=as_bytes(ids))
    assert code == 0
    assert "\x1b" not in out
    assert "degraded: think_not_closed" in out
    assert f"{len(ids)} ids" in out
    assert "finish_reason: tool_calls" in out


def test_a_chat_template_models_ids_are_decoded_by_its_own_decoder(dayzero, smollm2, smollm2_is_here):
    ids = [*smollm2._encoder.encode(["Paris."], at_start=False)[0].tolist(), smollm2.stop_ids[0]]
    words = ("decode", "-", "--json", "--model", "smollm2-135m-instruct", "--start", "response")
    _, out, _ = dayzero(*words, stdin=as_bytes(ids))
    assert (json.loads(out)["content"], json.loads(out)["finish_reason"]) == ("Paris.", "stop")


def test_as_programs_one_reads_what_the_other_means(small_k3):
    """The two as an operator runs them, standard input and output included, with the variable naming the vocabulary."""
    roots = os.pathsep.join(str(ROOT / name) for name in ("platform", "router", "deployments"))
    environment = {**os.environ, "PYTHONPATH": roots, "DAYZERO_K3_VOCABULARY": str(SHIPPED)}

    def program(*words, stdin):
        command = [sys.executable, "-m", "dayzero.cli.main", *words]
        done = subprocess.run(
            command, input=stdin, capture_output=True, env=environment, timeout=60, check=True
        )
        return json.loads(done.stdout)

    turn = {"role": "assistant", "content": "Grüße", "reasoning_content": "hm", "partial": False}
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    first = record(*prompt_of(as_bytes(asked), small_k3), small_k3)["prompt_token_ids"]
    both = {"messages": [*asked["messages"], turn]}
    whole = program("prompt", "-", "--json", stdin=as_bytes(both))["prompt_token_ids"]
    said = whole[len(first) : whole.index(small_k3.frontend.stop_ids[0], len(first)) + 1]
    answer = program("decode", "-", "--json", stdin=as_bytes(said))
    assert (answer["reasoning_content"], answer["content"]) == ("hm", "Grüße")
    assert (answer["finish_reason"], answer["degraded"]) == ("stop", [])
