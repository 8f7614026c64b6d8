"""What a region tells its peers of itself: `GET /internal/v1/peer`, and the digest beside it.

- The figures come from the region's own `place`, asked for a prompt of PROBE_TOKENS: what a peer is told is what a
  request would meet, whatever the score is made of.
- Figures from outside are bounded when they are read.
- Between regions go token ids: they are sent only where the same vocabulary makes and reads them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Protocol

import msgspec

from dayzero.engine.types import EngineRequest, Sampling
from dayzero.gateway.dispatch import Dispatcher, replica_state
from dayzero.router.chain import Chain
from dayzero.router.errors import NoReplicaError

VERSION = 1
PROBE_TOKENS = 1024
_DIGEST_CHARACTERS = 12
_PROBE = EngineRequest(
    request_id="peer-probe", prompt_ids=bytes(4 * PROBE_TOKENS), sampling=Sampling(max_tokens=1)
)

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model there. `wait_s`: at the best replica, for a prompt of no tokens; absent: nobody can take one now."""

    model: Annotated[str, msgspec.Meta(max_length=256)]
    able: Count = 0
    """Replicas that may be tried."""
    wait_s: Seconds | None = None
    prefill_s_per_token: Seconds = 0.0
    health: dict[Annotated[str, msgspec.Meta(max_length=32)], Count] = {}
    """Replicas by health."""
    why: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    """Why nobody can."""
    digest: int | None = None
    """The version of its digest."""
    vocabulary: Annotated[str, msgspec.Meta(max_length=64, pattern="^[0-9a-f]*$")] = ""
    """The SHA-256 of its vocabulary, hex; empty: it does not say."""


class PeerInfo(msgspec.Struct, frozen=True, kw_only=True):
    region: Annotated[str, msgspec.Meta(max_length=64)]
    models: Annotated[tuple[ModelInfo, ...], msgspec.Meta(max_length=1024)] = ()
    version: int = VERSION

    def model(self, name: str) -> ModelInfo | None:
        return next((model for model in self.models if model.model == name), None)


class Digests(Protocol):
    """What this region tells of its prefixes: one digest a model."""

    def version(self, model: str) -> int | None:
        """Another number whenever the digest is another; None: there is none."""
        ...

    def encoded(self, model: str) -> bytes | None:
        """None: there is none."""
        ...


class KnownPrefixes(Protocol):
    """A peer's digest, read."""

    def unit_sizes(self) -> frozenset[int]:
        """Which chains it must be asked with."""
        ...

    def depth_tokens(self, chains: Mapping[int, Chain]) -> int:
        """How many tokens of a prompt's start some replica there may have."""
        ...


def other_vocabulary(own: str, told: ModelInfo | None) -> str:
    """Why a model's tokens may not be sent there, in words; "" where nothing is known against it."""
    if told is None or not own or not told.vocabulary or own == told.vocabulary:
        return ""
    there, here = told.vocabulary[:_DIGEST_CHARACTERS], own[:_DIGEST_CHARACTERS]
    return (
        f"its vocabulary of {told.model} is another one: {there} there, {here} here; start both with the same"
    )


def told(model: str, dispatcher: Dispatcher, digest: int | None, vocabulary: str = "") -> ModelInfo:
    """What this region's own dispatcher says of a model."""
    health = Counter(str(replica_state(replica["health"])) for replica in dispatcher.replicas())
    try:
        placement = dispatcher.place(_PROBE, frozenset())
    except NoReplicaError as e:
        why = e.message[:1024]
        return ModelInfo(model=model, health=dict(health), why=why, digest=digest, vocabulary=vocabulary)
    best = placement.scores[0]
    return ModelInfo(
        model=model,
        able=len(placement.scores),
        wait_s=max(0.0, best.total_s - best.prefill_s),
        prefill_s_per_token=max(0.0, best.prefill_s) / PROBE_TOKENS,
        health=dict(health),
        digest=digest,
        vocabulary=vocabulary,
    )


def info(region: str, models: Iterable[tuple[str, str, Dispatcher]], digests: Digests | None) -> PeerInfo:
    """`models`: each with its vocabulary's digest and this region's own dispatcher."""
    return PeerInfo(
        region=region,
        models=tuple(
            told(name, dispatcher, digests.version(name) if digests else None, vocabulary)
            for name, vocabulary, dispatcher in models
        ),
    )
