"""AdmittedPrompts: the prompts of requests that an engine has, kept to name their partial tails.

- Only where the unit is finer than the block; else nothing is kept.
- Bounded in requests and in bytes; the oldest go. A prompt is hashed when an event first asks for its tail, and then
  only the tail is kept.
"""

from collections import OrderedDict
from dataclasses import dataclass

from dayzero.engine.types import EngineRequest
from dayzero.router.chain import TOKEN_BYTES, ChainHash, Namespace, Picture, extend
from dayzero.router.changes import Layout

_MAX_REQUESTS = 16_384


@dataclass(frozen=True, slots=True)
class _Tail:
    """Where a repeat of a prompt can resume: its name, depth and last unit's ids."""

    name: ChainHash
    units: int
    unit_ids: bytes


class AdmittedPrompts:
    def __init__(self, model: str, layout: Layout, *, max_bytes: int = 256 << 20) -> None:
        self._max_bytes = max_bytes
        self._model = model
        self._layout = layout
        self._known: OrderedDict[str, EngineRequest | _Tail] = OrderedDict()
        self._bytes = 0

    def admit(self, request: EngineRequest) -> None:
        if self._layout.unit_tokens == self._layout.block_tokens or request.request_id == "":
            return
        self._forget(request.request_id)
        self._known[request.request_id] = request
        self._bytes += len(request.prompt_ids)
        while len(self._known) > _MAX_REQUESTS or self._bytes > self._max_bytes:
            self._forget(next(iter(self._known)))

    def tail(self, request_id: str, unit_ids: bytes) -> tuple[ChainHash, int] | None:
        """Name and depth of the request's tail, if its last unit holds just these ids."""
        known = self._known.get(request_id)
        if isinstance(known, EngineRequest):
            known = self._hashed(known)
        if known is None or known.unit_ids != unit_ids:
            return None
        return known.name, known.units

    def _hashed(self, request: EngineRequest) -> _Tail | None:
        """The prompt goes, its tail stays; None where the prompt has no whole unit before its last token."""
        self._forget(request.request_id)
        unit = self._layout.unit_tokens
        units = (request.prompt_tokens - 1) // unit
        if units < 1:
            return None
        size = unit * TOKEN_BYTES
        pictures = [Picture(media.offset_tokens, media.digest) for media in request.media]
        space = Namespace(self._model, unit, request.salt, request.lora)
        name = extend(space.root(), request.prompt_ids[: units * size], unit, pictures)[-1]
        tail = _Tail(name, units, request.prompt_ids[(units - 1) * size : units * size])
        self._known[request.request_id] = tail
        return tail

    def _forget(self, request_id: str) -> None:
        known = self._known.pop(request_id, None)
        if isinstance(known, EngineRequest):
            self._bytes -= len(known.prompt_ids)
