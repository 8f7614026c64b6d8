"""The OpenAPI page is made from the types, so it shows what they take and what answers hold."""

import json

import pytest

from dayzero.api.chat import frames
from dayzero.api.openapi import document
from dayzero.frontend.events import Content, Finished, FinishReason, fold

DOCUMENT = document("1")
SCHEMAS = DOCUMENT["components"]["schemas"]


def refs(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for child in value.values():
            yield from refs(child)
    elif isinstance(value, list):
        for child in value:
            yield from refs(child)


def valid(name, value):
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_every_reference_leads_somewhere():
    named = set(refs(DOCUMENT))
    assert len(named) > 10
    assert {ref.removeprefix("#/components/schemas/") for ref in named} <= set(SCHEMAS)


def test_kimi_k3s_fields_are_on_the_page():
    assert {"thinking", "reasoning_effort"} <= set(SCHEMAS["ChatCompletionRequest"]["properties"])
    assert {"partial", "reasoning_details"} <= set(SCHEMAS["AssistantMessage"]["properties"])
    assert "tools" in SCHEMAS["SystemMessage"]["properties"]
    assert "content" not in SCHEMAS["SystemMessage"]["required"]
    assert "usage" not in SCHEMAS["ChunkChoice"]["required"]
    assert "cached_tokens" not in SCHEMAS["UsageObject"]["required"]


@pytest.mark.parametrize("moonshot", [False, True])
def test_what_is_sent_is_what_the_page_says(moonshot):
    head = frames.Head("chatcmpl-1", 1_700_000_000, "m", moonshot_usage=moonshot)
    usage = frames.Usage(3, 2, 1, 1)
    events = [Content("x"), Finished(FinishReason.STOP)]
    valid("ChatCompletion", json.loads(frames.completion(head, fold(events), usage, None)))
    for frame in frames.ChunkWriter(head).events(events, None, usage).split(b"\n\n")[:-1]:
        valid("ChatCompletionChunk", json.loads(frame.removeprefix(b"data: ")))
