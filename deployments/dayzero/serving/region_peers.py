"""The peers of a gateway, from the fleet file and the run folder: for a region's ingress and for a gateway alone."""

from dayzero.config import Fleet
from dayzero.gateway.regions.health import HealthPolicy
from dayzero.gateway.regions.peer import PeerAddress
from dayzero.gateway.regions.peers import Peers
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.gateway.regions.prefixes import PeerPrefixes
from dayzero.router.regions import SpillPolicy
from dayzero.serving.peer_book import PeerBook


def peers_of(book: PeerBook, key: str, rules: RegionsPolicy) -> Peers:
    """They follow the book while they run."""
    addresses = [PeerAddress(region, url) for region, url in book.urls().items()]
    return Peers.at(addresses, key, rules, reader=PeerPrefixes.read, book=book.urls)


def regions_policy(fleet: Fleet) -> RegionsPolicy:
    rules = fleet.policy.regions
    return RegionsPolicy(
        probe_period_s=rules.probe_period_s,
        probe_timeout_s=rules.probe_timeout_s,
        first_frame_s=rules.first_frame_s,
        heartbeat_s=rules.heartbeat_s,
        lost_after_s=rules.lost_after_s,
        first_token_s=rules.first_token_s,
        first_token_factor=rules.first_token_factor,
        spill=SpillPolicy(
            margin_s=rules.spill.margin_s,
            margin_share=rules.spill.margin_share,
            max_age_s=rules.spill.max_age_s,
        ),
        health=HealthPolicy(down_after=rules.down_after, up_after=rules.up_after),
    )
