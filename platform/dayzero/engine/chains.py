"""A request's chain: hashed once where its prompt is made, carried with it, and hashed again only for another unit.

- The namespace is all that the chain must tell apart: the model, the tenant's salt, the LoRA adapter; pictures enter
  the units where they begin.
- A chain that came with a request is believed: it comes from a gateway of ours, over a way that asks for its key.
"""

import msgspec

from dayzero.engine.types import EngineRequest
from dayzero.router.chain import HASH_BYTES, Chain, Namespace, Picture

INLINE_TOKENS = 32_768
"""Longer prompts are hashed off the event loop: this many take up to 0.5 ms in units of 16."""


def space_of(request: EngineRequest, model: str, unit_tokens: int) -> Namespace:
    return Namespace(model, unit_tokens, request.salt, request.lora)


def pictures_of(request: EngineRequest) -> list[Picture]:
    return [Picture(media.offset_tokens, media.digest) for media in request.media]


def chain_of(request: EngineRequest, model: str, unit_tokens: int) -> Chain:
    """The one that it carries, if its unit is right."""
    units = request.prompt_tokens // unit_tokens
    if request.chain_unit_tokens == unit_tokens and len(request.chain) == units * HASH_BYTES:
        return Chain(unit_tokens, request.chain)
    return Chain.of(request.prompt_ids, space_of(request, model, unit_tokens), pictures_of(request))


def chains_of(request: EngineRequest, model: str, units: frozenset[int]) -> dict[int, Chain]:
    """By unit size."""
    return {unit: chain_of(request, model, unit) for unit in units}


def with_chain(request: EngineRequest, model: str, unit_tokens: int) -> EngineRequest:
    """The request with its chain in that unit."""
    chain = chain_of(request, model, unit_tokens)
    return msgspec.structs.replace(request, chain=chain.joined, chain_unit_tokens=unit_tokens)
