"""What a gateway knows of its region's feed: followed as long as the gateway runs, shown in status pages and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dayzero.router.feed import Follower
from dayzero.router.residency import Residency
from dayzero.telemetry.metrics import FeedFigures


@dataclass(frozen=True, slots=True)
class FeedView:
    """`residencies`: by model; the follower keeps them."""

    follower: Follower
    residencies: Mapping[str, Residency]

    async def run(self) -> None:
        await self.follower.run()

    def status(self) -> dict[str, Any]:
        """`exact`: what is known of a replica's cache is what it has told, up to its latest message."""
        feed = self.follower.status()
        counts = [residency.counts() for residency in self.residencies.values()]
        blocks = {replica: number for count in counts for replica, number in count.blocks.items()}
        told: dict[str, Any] = {
            "connected": feed.connected,
            "gaps": feed.gaps,
            "skipped": feed.skipped,
            "failures": feed.failures,
            "evicted": sum(count.evicted for count in counts),
            "voided": sum(sum(count.voided.values()) for count in counts),
            "replicas": {
                name: {
                    "exact": heard.exact,
                    "blocks": blocks.get(name, 0),
                    "sequence": heard.sequence,
                    "silent_s": round(heard.silent_s, 1),
                }
                for name, heard in sorted(feed.replicas.items())
            },
        }
        if feed.lag_s is not None:
            told["lag_ms"] = round(1000 * feed.lag_s, 1)
        return told

    def figures(self) -> FeedFigures:
        feed = self.follower.status()
        exact = sum(heard.exact for heard in feed.replicas.values())
        return FeedFigures(
            connected=feed.connected,
            lag_s=feed.lag_s,
            exact_replicas=exact,
            void_replicas=len(feed.replicas) - exact,
            blocks={
                model: sum(residency.counts().blocks.values())
                for model, residency in self.residencies.items()
            },
        )
