"""The Dispatcher over regions: this region's own dispatcher, and the peers.

- The choice is `router.regions.choose`: pure, on what is known now. The exact replica of a peer is chosen there.
- `excluded` holds what failed this request: replicas here, `region/replica`, or a region. A region with a failed
  replica is passed over as long as another can serve; as the last one left it is asked again, without that replica.
- `local` None: a gateway alone, at an edge.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dayzero.engine.chains import chains_of
from dayzero.engine.types import EngineRequest
from dayzero.gateway.dispatch import Dispatch, Dispatcher
from dayzero.gateway.regions.info import KnownPrefixes
from dayzero.gateway.regions.peer import Peer
from dayzero.gateway.regions.peers import Peers
from dayzero.router.errors import NoReplicaError
from dayzero.router.place import Placement
from dayzero.router.regions import PeerView, RegionChoice, RegionRequest, SpillPolicy, choose


class RegionalDispatcher:
    """One model's. See the module's docstring. `home`: this gateway's region, or the edge's name."""

    def __init__(
        self,
        local: Dispatcher | None,
        peers: Peers,
        *,
        model: str,
        home: str,
        policy: SpillPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.local = local
        self._peers = peers
        self._model = model
        self._home = home
        self._policy = policy
        self._clock = clock

    def place(self, request: EngineRequest, excluded: frozenset[str]) -> Placement:
        """Raises NoReplicaError. A peer's placement has no scores: they are made there."""
        here, error = self._place_here(request, excluded)
        views = self._views(request)
        failed = _failed(excluded, self._peers.regions)
        choice = self._choose(here, error, views, request, frozenset(failed))
        if choice.target is None and any(failed.values()):
            lost = frozenset(region for region, replicas in failed.items() if not replicas)
            choice = self._choose(here, error, views, request, lost)
        if choice.target is None:
            raise error or NoReplicaError(
                "No region can take the request now. Try again shortly.", retry_after_s=2.0
            )
        self._peers.chosen(choice)
        if choice.at_home:
            assert here is not None
            return replace(here, choice=choice)
        choice = replace(choice, avoid=tuple(sorted(failed.get(choice.target, ()))))
        return Placement(
            scores=(),
            skipped=(),
            reason=choice.reason,
            choice=choice,
            predicted_s=choice.predicted_s,
        )

    def dispatch(self, request: EngineRequest, placement: Placement) -> Dispatch:
        choice = placement.choice
        if choice is None or choice.at_home or choice.target is None:
            assert self.local is not None
            return self.local.dispatch(request, placement)
        return self._peers[choice.target].dispatch(
            self._model, request, predicted_s=placement.predicted_s, avoid=choice.avoid
        )

    def unit_sizes(self) -> frozenset[int]:
        """Home's own, where there is one: it decides the most."""
        own: frozenset[int] = self.local.unit_sizes() if self.local else frozenset()
        return own or _units(self._known())

    def replicas(self) -> list[dict[str, Any]]:
        """Those of this region."""
        return self.local.replicas() if self.local else []

    def _place_here(
        self, request: EngineRequest, excluded: frozenset[str]
    ) -> tuple[Placement | None, NoReplicaError | None]:
        if self.local is None:
            return None, None
        try:
            return self.local.place(request, excluded), None
        except NoReplicaError as e:
            return None, e

    def _choose(
        self,
        here: Placement | None,
        error: NoReplicaError | None,
        views: list[PeerView],
        request: EngineRequest,
        tried: frozenset[str],
    ) -> RegionChoice:
        asked = RegionRequest(
            request_id=request.request_id,
            home=self._home,
            prompt_tokens=request.prompt_tokens,
            tried=tried,
            allowed=None if request.regions is None else frozenset(request.regions),
        )
        return choose(here, error, views, asked, self._policy, self._clock())

    def _known(self) -> dict[str, KnownPrefixes]:
        return {peer.region: prefixes for peer in self._peers if (prefixes := peer.prefixes(self._model))}

    def _views(self, request: EngineRequest) -> list[PeerView]:
        known = self._known()
        chains = chains_of(request, self._model, _units(known))

        def depth(peer: Peer) -> int:
            return known[peer.region].depth_tokens(chains) if peer.region in known else 0

        return [peer.view(self._model, depth(peer)) for peer in self._peers]


def _units(known: Mapping[str, KnownPrefixes]) -> frozenset[int]:
    return frozenset(unit for prefixes in known.values() for unit in prefixes.unit_sizes())


def _failed(excluded: frozenset[str], regions: tuple[str, ...]) -> dict[str, set[str]]:
    """Peer regions that failed this request → their replicas that did; no replica: the region itself did."""
    failed: dict[str, set[str]] = {}
    for name in excluded:
        region, _, replica = name.partition("/")
        if region in regions:
            failed.setdefault(region, set()).update({replica} if replica else ())
    return {region: set() if region in excluded else replicas for region, replicas in failed.items()}
