"""The OpenAPI document, made from the very types that validate requests: there is no second description."""

from functools import cache
from typing import Any

import msgspec

from dayzero.api.chat.request import ChatCompletionRequest, ToolDeclaration, schema_of_own_type
from dayzero.api.chat.response import ChatCompletion, ChatCompletionChunk, ErrorResponse
from dayzero.api.models import ModelList, ModelObject

_TYPES = (
    ChatCompletionRequest,
    ToolDeclaration,
    ChatCompletion,
    ChatCompletionChunk,
    ErrorResponse,
    ModelList,
    ModelObject,
)
_EXAMPLE = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_completion_tokens": 32,
}
_ERRORS = {
    "400": "The request is at fault; `param` names the field.",
    "401": "No API key, or one that is not known.",
    "404": "No such model or path.",
    "413": "The body is larger than this server takes.",
    "500": "Our fault.",
    "503": "No replica can take the request now; `Retry-After` says when to come back.",
    "504": "The request took longer than it may.",
}


@cache
def document(version: str) -> dict[str, Any]:
    """The whole document; do not change what it returns."""
    _, components = msgspec.json.schema_components(
        _TYPES, schema_hook=schema_of_own_type, ref_template="#/components/schemas/{name}"
    )
    secured: list[dict[str, list[str]]] = [{"bearer": []}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dayzero",
            "version": version,
            "description": "Open models as a public API: OpenAI-compatible, streamed and not.",
        },
        "paths": {
            "/v1/chat/completions": {"post": _chat(secured)},
            "/v1/models": {
                "get": _get("listModels", "The models served here", "ModelList", ("401",), secured),
            },
            "/v1/models/{model}": {
                "get": _get("retrieveModel", "One model", "ModelObject", ("401", "404"), secured)
                | {
                    "parameters": [
                        {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
                    ]
                },
            },
            "/livez": {"get": _probe("livez", "The gateway's process answers", {"200": "It does."})},
            "/readyz": {
                "get": _probe(
                    "readyz",
                    "A real answer came out lately",
                    {"200": "It did.", "503": "It did not; the body says why."},
                )
            },
            "/metrics": {"get": _probe("metrics", "Prometheus metrics", {"200": "In text format."})},
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(name)}}


def _errors(codes: tuple[str, ...]) -> dict[str, Any]:
    return {code: {"description": _ERRORS[code], "content": _json("ErrorResponse")} for code in codes}


def _chat(security: list[dict[str, list[str]]]) -> dict[str, Any]:
    return {
        "operationId": "createChatCompletion",
        "summary": "Answer a conversation",
        "description": (
            "What a model's contract allows beside these types, and which of Kimi K3's fields another model ignores, is"
            " in docs/kimi-k3-api.md; a 400 names the field."
        ),
        "security": security,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _ref("ChatCompletionRequest"), "example": _EXAMPLE},
            },
        },
        "responses": {
            "200": {
                "description": "The answer; with `stream: true` server-sent events, the last being `[DONE]`.",
                "content": _json("ChatCompletion")
                | {"text/event-stream": {"schema": _ref("ChatCompletionChunk")}},
            }
        }
        | _errors(tuple(_ERRORS)),
    }


def _get(
    name: str, summary: str, schema: str, errors: tuple[str, ...], security: list[dict[str, list[str]]]
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "security": security,
        "responses": {"200": {"description": summary, "content": _json(schema)}} | _errors(errors),
    }


def _probe(name: str, summary: str, answers: dict[str, str]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {code: {"description": text} for code, text in answers.items()},
    }
