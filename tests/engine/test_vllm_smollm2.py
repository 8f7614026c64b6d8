"""SmolLM2 on real vLLM: a real model that answers; grammars, long prefills, refusals, deadlines, concurrency."""

import asyncio
import json
import time

import pytest
import pytest_asyncio

from dayzero.engine.errors import ContextLengthError, UnsupportedFeatureError
from dayzero.engine.types import Finish, Grammar, GrammarKind, Media
from dayzero.errors import InvalidRequestError
from dayzero.serving.weights import ensure_smollm2
from tests.engine.vllm_support import (
    collect,
    needs_vllm,
    request,
    run_dir,
    started,
    tiny_config,
    wait_until,
)

pytestmark = [*needs_vllm, pytest.mark.asyncio(loop_scope="module")]

CONTEXT_TOKENS = 8192


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ensure_smollm2(tmp_path_factory.mktemp("models") / "smollm2")


@pytest.fixture(scope="module")
def tokenizer(model):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model):
    """The longest prompt goes through in one step: a prefill of several seconds."""
    async with run_dir() as run:
        config = tiny_config(
            model,
            run,
            served_name="smollm2",
            max_model_tokens=CONTEXT_TOKENS,
            max_num_batched_tokens=CONTEXT_TOKENS,
            kv_cache_bytes=512 << 20,
            grammars=True,
        )
        async with started(config) as engine:
            yield engine


def chat(tokenizer, question):
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(text).ids


async def test_it_knows_the_capital_of_france(engine, tokenizer):
    ids, last = await collect(engine, request("paris", tokenizer.encode("The capital of France is").ids))
    assert "Paris" in tokenizer.decode(ids)
    assert (last.finish, last.usage.prompt_tokens) == (Finish.LENGTH, 5)


async def test_it_ends_its_turn_with_the_models_own_stop_id(engine, tokenizer):
    prompt = chat(tokenizer, "What is the capital of France? Answer in one word.")
    ids, last = await collect(engine, request("turn", prompt, max_tokens=60, ignore_eos=False))
    assert last.finish is Finish.STOP
    assert ids[-1] == 2, "the stop id is delivered as the last one"
    assert "Paris" in tokenizer.decode(ids)


async def test_a_continuation_goes_on_where_the_first_part_ended(engine, tokenizer):
    prompt = tokenizer.encode("Once upon a time there was").ids
    whole, _ = await collect(engine, request("whole", prompt, max_tokens=16))
    rest, last = await collect(
        engine, request("rest", prompt + whole[:6], max_tokens=10, continuation_tokens=6)
    )
    assert len(rest) == 10
    assert rest[:2] == whole[6:8], "bf16 may fork later; the first steps do not"
    assert last.usage.completion_tokens == 10


async def test_a_seed_repeats_a_sampled_answer_and_another_does_not(engine, tokenizer):
    prompt = tokenizer.encode("My favourite animals are").ids
    sample = {"temperature": 1.2, "max_tokens": 16}
    first, _ = await collect(engine, request("s1", prompt, seed=11, **sample))
    again, _ = await collect(engine, request("s2", prompt, seed=11, **sample))
    other, _ = await collect(engine, request("s3", prompt, seed=12, **sample))
    assert first == again
    assert first != other


async def test_a_logit_bias_forces_a_token(engine, tokenizer):
    (banana,) = tokenizer.encode(" banana").ids[-1:]
    ids, _ = await collect(
        engine, request("bias", tokenizer.encode("I like").ids, max_tokens=3, logit_bias={banana: 100.0})
    )
    assert ids == [banana] * 3


async def test_a_json_schema_holds_the_output(engine, tokenizer):
    schema = {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "n": {"type": "integer", "maximum": 9, "minimum": 0},
        },
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    prompt = chat(tokenizer, "The capital of France and a digit, as JSON.")
    ids, last = await collect(
        engine, request("schema", prompt, max_tokens=60, ignore_eos=False, grammar=grammar)
    )
    assert last.finish is Finish.STOP
    value = json.loads(tokenizer.decode(ids))
    assert set(value) == {"city", "n"}
    assert value["city"] in {"Paris", "Rome"}


@pytest.mark.parametrize(
    ("grammar", "fits"),
    [
        (Grammar(GrammarKind.REGEX, "(yes|no) [0-9]{3}"), lambda text: text[-4:].strip().isdigit()),
        (Grammar(GrammarKind.JSON_OBJECT), lambda text: text.lstrip().startswith("{")),
        (
            Grammar(
                GrammarKind.STRUCTURAL_TAG,
                json.dumps(
                    {"type": "structural_tag", "format": {"type": "const_string", "value": "<ok>fine</ok>"}}
                ),
            ),
            lambda text: text == "<ok>fine</ok>",
        ),
    ],
    ids=["regex", "json_object", "structural_tag"],
)
async def test_each_kind_of_grammar_holds_the_output(engine, tokenizer, grammar, fits):
    prompt = chat(tokenizer, "Answer.")
    ids, _ = await collect(
        engine,
        request(f"g-{grammar.kind}", prompt, max_tokens=24, ignore_eos=False, grammar=grammar),
    )
    text = tokenizer.decode(ids)
    assert fits(text), text


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.JSON_SCHEMA, "{not json"),
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "properties": 7}'),
        Grammar(GrammarKind.REGEX, "(unclosed"),
        Grammar(GrammarKind.STRUCTURAL_TAG, '{"type": "nonsense"}'),
    ],
    ids=["not json", "bad schema", "bad regex", "bad tag"],
)
async def test_a_bad_grammar_is_a_400_and_harms_nobody(engine, tokenizer, grammar):
    prompt = tokenizer.encode("The capital of France is").ids
    beside = asyncio.create_task(collect(engine, request("beside", prompt, max_tokens=20)))
    await wait_until(lambda: engine.stats().running > 0)
    with pytest.raises(InvalidRequestError) as caught:
        await collect(engine, request("bad", prompt, grammar=grammar))
    assert caught.value.status == 400
    assert grammar.spec not in caught.value.message, "what was sent is not repeated"
    ids, _ = await beside
    assert "Paris" in tokenizer.decode(ids)
    assert (await engine.health()).ok


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"stop_token_ids": (49_152,)}, "stop_token_ids"),
        ({"logit_bias": {60_000: 1.0}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"seed": 1 << 63}, "seed"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 4}, None),
    ],
)
async def test_a_bad_parameter_is_a_400_that_names_it(engine, changes, field):
    with pytest.raises(InvalidRequestError) as caught:
        await collect(engine, request("bad", [5, 6, 7], **changes))
    assert caught.value.param == field
    assert engine.stats().running == 0


@pytest.mark.parametrize(
    "ids", [[], [5, 49_152], [4_294_967_295]], ids=["empty", "just outside", "far outside"]
)
async def test_a_prompt_that_would_crash_the_engine_is_refused(engine, tokenizer, ids):
    with pytest.raises(InvalidRequestError) as caught:
        await collect(engine, request("bad", ids))
    assert caught.value.param == "prompt"
    good, _ = await collect(engine, request("good", tokenizer.encode("The capital of France is").ids))
    assert "Paris" in tokenizer.decode(good)


async def test_a_prompt_as_long_as_the_context_is_refused(engine):
    with pytest.raises(ContextLengthError, match=f"{CONTEXT_TOKENS}"):
        await collect(engine, request("long", [5] * CONTEXT_TOKENS))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"media": (Media(b"png", b"digest", 0, 1),)}, "media"),
        ({"lora": "adapter"}, "lora"),
        ({"kv_transfer": {"do_remote_prefill": True}}, "kv_transfer"),
    ],
)
async def test_what_it_cannot_do_yet_is_said(engine, changes, field):
    with pytest.raises(UnsupportedFeatureError) as caught:
        await collect(engine, request("no", [5, 6], **changes))
    assert caught.value.param == field


async def test_two_running_requests_of_one_id_are_refused(engine):
    first = engine.generate(request("same", [5, 6, 7], max_tokens=200))
    await anext(first)
    with pytest.raises(InvalidRequestError, match="running already"):
        await collect(engine, request("same", [5, 6, 7]))
    await first.aclose()
    _, last = await collect(engine, request("same", [5, 6, 7], max_tokens=2))
    assert last.finish is Finish.LENGTH


async def test_a_deadline_that_passes_while_it_runs_ends_it_with_abort(engine):
    deadline_s = time.time() + 1.0
    ids, last = await collect(engine, request("late", [5, 6, 7], max_tokens=4000, deadline_s=deadline_s))
    assert last.finish is Finish.ABORT
    assert last.usage.completion_tokens == len(ids) > 0
    assert time.time() - deadline_s < 3
    await wait_until(lambda: engine.stats().running == 0)


async def test_times_are_in_order(engine):
    _, last = await collect(engine, request("times", list(range(100, 400)), max_tokens=4))
    assert 0 <= last.times.queue_s <= last.times.first_token_s <= last.times.total_s


async def test_a_prefill_of_seconds_in_one_step_is_healthy_throughout(engine):
    """No token and no answer for the whole step; only the CPU shows that it lives."""
    prompt = [100 + (i * 7919) % 40_000 for i in range(CONTEXT_TOKENS - 1500)]
    began_s = time.monotonic()
    task = asyncio.create_task(collect(engine, request("prefill", prompt, max_tokens=2)))
    reasons = set()
    while not task.done():
        health = await engine.health()
        assert health.ok, health.reason
        reasons.add(health.reason.split(" for ")[0])
        await asyncio.wait([task], timeout=0.1)
    _, last = await task
    assert last.finish is Finish.LENGTH
    if time.monotonic() - began_s < 4:
        pytest.skip("too quick a machine: the step was no longer than the watchdog's own limits")
    assert "a step has been running" in reasons, f"the step was never seen as long: {reasons}"


async def test_closing_one_of_many_leaves_the_others_and_reaches_the_engine_at_once(engine, tokenizer):
    prompt = tokenizer.encode("The capital of France is").ids
    others = [
        asyncio.create_task(collect(engine, request(f"other{i}", prompt, max_tokens=24))) for i in range(3)
    ]
    leaving = engine.generate(request("leaving", prompt, max_tokens=2000))
    await anext(leaving)
    began_s = time.monotonic()
    await leaving.aclose()
    assert time.monotonic() - began_s < 0.2
    for ids, last in await asyncio.gather(*others):
        assert (len(ids), last.finish) == (24, Finish.LENGTH)
    generated = engine.stats().generated_tokens_total
    await asyncio.sleep(0.3)
    assert engine.stats().generated_tokens_total == generated
