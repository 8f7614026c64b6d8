"""`GET /v1/models` and `/v1/models/{id}`: OpenAI's model objects, with the context length beside them."""

from collections.abc import Iterable
from typing import Literal

import msgspec


class ModelObject(msgspec.Struct, frozen=True):
    """`created`: Unix seconds. `max_model_len`: tokens of prompt and answer together, as vLLM names it."""

    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "dayzero"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelObject]
    object: Literal["list"] = "list"


def model_list(models: Iterable[ModelObject]) -> bytes:
    return msgspec.json.encode(ModelList(list(models)))


def model_object(model: ModelObject) -> bytes:
    return msgspec.json.encode(model)
