"""What a simulated engine takes: the checks before any work, and the name under which it caches. Pure."""

from collections.abc import Collection

from dayzero.engine.errors import ContextLengthError, UnsupportedFeatureError
from dayzero.engine.types import EngineRequest, GrammarKind
from dayzero.errors import InvalidRequestError


def check(request: EngineRequest, *, room_tokens: int, grammars: Collection[GrammarKind]) -> None:
    """`room_tokens`: of the model's context. `grammars`: the kinds that its voice obeys. Raises InvalidRequestError."""
    if not request.prompt_tokens:
        raise InvalidRequestError.of("prompt_ids", "the prompt holds no token; send one at least")
    if request.prompt_tokens >= room_tokens:
        raise ContextLengthError(
            f"the prompt has {request.prompt_tokens} tokens and the context {room_tokens}: nothing is left for an "
            "answer; shorten the prompt",
            param="prompt_ids",
        )
    if request.sampling.max_tokens < 1:
        raise InvalidRequestError.of("max_tokens", "max_tokens must be 1 or more")
    if request.grammar is not None and request.grammar.kind not in grammars:
        raise UnsupportedFeatureError(
            f"this simulated engine obeys no grammar of the kind {request.grammar.kind}; leave it out",
            param="grammar",
        )
    for field in ("lora", "kv_transfer"):
        if getattr(request, field):
            raise UnsupportedFeatureError(f"the simulated engine has no {field}; leave it out", param=field)


def cache_salt(request: EngineRequest) -> str:
    """Prompts with other pictures share nothing.

    The router, which knows where a picture begins, does not find them under this name: it credits them with nothing.
    """
    return ".".join([request.salt, *(media.digest.hex() for media in request.media)])
