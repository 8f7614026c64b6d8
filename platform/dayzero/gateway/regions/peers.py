"""All peer regions of a gateway: started, stopped and asked together; one that moved is asked where it is now."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dayzero.gateway.background import kept_up
from dayzero.gateway.regions.info import KnownPrefixes
from dayzero.gateway.regions.peer import Observer, Peer, PeerAddress
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.router.regions import RegionChoice

_FOLLOW_PERIOD_S = 1.0


class Peers:
    """All of them. `start` begins the probes, `stop` ends them and closes every connection."""

    def __init__(self, peers: Iterable[Peer], book: Callable[[], Mapping[str, str]] | None = None) -> None:
        self._book = book
        self._peers = {peer.region: peer for peer in peers}
        self._tasks: list[asyncio.Task[None]] = []
        self._observer: Observer | None = None

    @classmethod
    def at(
        cls,
        addresses: Sequence[PeerAddress],
        key: str,
        policy: RegionsPolicy,
        *,
        reader: Callable[[bytes], KnownPrefixes] | None = None,
        book: Callable[[], Mapping[str, str]] | None = None,
    ) -> "Peers":
        """`book`: the addresses by region, looked up again and again; None: they stay."""
        return cls((Peer(address, key, policy, reader=reader) for address in addresses), book)

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __getitem__(self, region: str) -> Peer:
        return self._peers[region]

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(self._peers)

    def observe(self, observer: Observer) -> None:
        self._observer = observer
        for peer in self._peers.values():
            peer.observer = observer

    def speak(self, vocabularies: Mapping[str, str]) -> None:
        """The digest of this gateway's vocabulary of each model: a peer with another one is not sent that model's."""
        for peer in self._peers.values():
            peer.vocabularies = vocabularies

    def chosen(self, choice: RegionChoice) -> None:
        """Counts a choice."""
        if self._observer is not None and choice.target is not None:
            self._observer.region_chosen(choice.target, choice.why)

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(kept_up(f"probing {peer.region}", peer.run)) for peer in self._peers.values()
        ]
        if self._book is not None and self._peers:
            self._tasks.append(asyncio.create_task(kept_up("following the peers' addresses", self._follow)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in self._peers.values()), return_exceptions=True)

    async def _follow(self) -> None:
        while self._book is not None:
            await asyncio.sleep(_FOLLOW_PERIOD_S)
            for region, url in self._book().items():
                if region in self._peers:
                    self._peers[region].move(url)

    def status(self) -> list[dict[str, Any]]:
        return [peer.status() for peer in self._peers.values()]
