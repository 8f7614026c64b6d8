"""The feed: what replicas cache, carried to gateways through their region's Redis or Valkey; and decisions kept there.

The only part of the router that does I/O, always in the background. What is in the store are hints: any of it may be
missing, and every part goes on without.
"""

from dayzero.router.feed.decisions import DecisionsStatus, DecisionStore
from dayzero.router.feed.errors import KeyRefusedError, MessageError, StoreGoneError, StoreUrlError
from dayzero.router.feed.follower import Follower
from dayzero.router.feed.publisher import Publisher, PublisherStatus
from dayzero.router.feed.status import FeedStatus, ReplicaFeed
from dayzero.router.feed.store import Store

__all__ = [
    "DecisionStore",
    "DecisionsStatus",
    "FeedStatus",
    "Follower",
    "KeyRefusedError",
    "MessageError",
    "Publisher",
    "PublisherStatus",
    "ReplicaFeed",
    "Store",
    "StoreGoneError",
    "StoreUrlError",
]
