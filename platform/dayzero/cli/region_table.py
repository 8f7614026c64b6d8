"""What a region's gateway says of itself, for people."""

from typing import Any

from rich.console import Console

from dayzero.cli.layout import counted, say, table
from dayzero.serving.local.state import RunState

_HEADINGS = (
    "replica",
    "doing",
    "running +\nwaiting",
    "cache blocks\nin use",
    "prompt tokens\n(cached)",
    "tokens\ngenerated",
    "up",
)
_OWN = (
    "Tokens include a replica's own: two requests at its start, which prove its cache's events, and canaries."
)


def print_region(state: RunState, status: dict[str, Any]) -> None:
    console = Console()
    gateway = status.get("gateway") or {}
    word = "ready" if status.get("ready") else "not ready"
    reason = f" ({status['reason']})" if status.get("reason") and word == "not ready" else ""
    counts = f"{gateway.get('in_flight', '?')} in flight, {counted(gateway.get('requests_total'), 'request')}"
    lines = [
        f"{status.get('region', state.region)}: {word}{reason}. {state.base_url}/v1",
        f"gateway: {counts}, up {age(gateway.get('uptime_s'))}. Ray: {state.dashboard_url}",
        _store((status.get("local") or {}).get("store") or {}),
    ]
    if vocabulary := (status.get("local") or {}).get("vocabulary"):
        lines.append(f"Kimi K3's vocabulary: {vocabulary}")
    lines += _cache(status.get("cache") or {})
    if feed := status.get("feed"):
        lines.append(_feed(feed))
    lines += [_peer(peer) for peer in status.get("regions") or []]
    say(console, "\n".join(lines))
    models = status.get("models") or []
    for model in models:
        made = table(*_HEADINGS, right=2)
        for row in model.get("replicas") or []:
            made.add_row(*_cells(row))
        engines = dict.fromkeys(row["engine"] for row in model.get("replicas") or [] if row.get("engine"))
        say(console, f"\n{model.get('model', '?')} on {', '.join(engines) or state.engine}")
        console.print(made)
        for row in model.get("replicas") or []:
            if why := row.get("no_affinity"):
                say(console, f"{row['replica']} gets nothing for what it has cached: {why}")
    if models:
        say(console, _OWN)


def _store(store: dict[str, Any]) -> str:
    if "answers" not in store:
        return f"store: {store.get('url', '?')}"
    keeper = "" if store["kept"] else "; nothing keeps it running, `dayzero up` mends that"
    if store["pid"] is None:
        return f"store: no Valkey runs, requests go on without it{keeper or '; its keeper starts it again'}"
    if not store["answers"]:
        return f"store: Valkey (process {store['pid']}) does not answer, requests go on without it{keeper}"
    return f"store: Valkey (process {store['pid']}) answers{keeper}"


def _cache(cache: dict[str, Any]) -> list[str]:
    """How much was cached lately, and how right the router was; nothing where nobody knows."""
    words = {
        "hit_rate": "{:.0%} of prompt tokens were cached",
        "phantom_rate": "{:.1%} of those predicted to be cached were not",
        "missed_rate": "{:.1%} of the cached ones were not predicted",
    }
    said = [words[name].format(cache[name]) for name in words if isinstance(cache.get(name), int | float)]
    return [f"cache, last {age(cache.get('window_s'))}: {', '.join(said)}"] if said else []


def _feed(feed: dict[str, Any]) -> str:
    replicas = (feed.get("replicas") or {}).values()
    exact = sum(bool(replica.get("exact")) for replica in replicas)
    blocks = sum(replica.get("blocks", 0) for replica in replicas)
    lag = f", {feed['lag_ms']:.0f} ms behind" if "lag_ms" in feed else ""
    known = f"{counted(blocks, 'cached block')} known, {exact} of {counted(len(replicas), 'replica')} exactly{lag}"
    return f"feed: {known}" if feed.get("connected") else f"feed: away; {known} when it was last heard"


def _peer(peer: dict[str, Any]) -> str:
    name = f"to {peer.get('region', '?')}"
    if not peer.get("up"):
        return f"{name}: left out, {peer.get('why') or 'unknown why'}"
    way = f", {peer['round_trip_ms']:.1f} ms away" if "round_trip_ms" in peer else ""
    models = peer.get("models") or []
    waits = [f"{model['wait_s']:.2f} s to a first token" for model in models if "wait_s" in model]
    full = [str(model.get("why") or "full") for model in models if "wait_s" not in model]
    return f"{name}: up{way}, " + "; ".join([*waits, *full, f"{peer.get('in_flight', 0)} sent and running"])


def _cells(row: dict[str, Any]) -> list[str]:
    """One replica's line, by `_HEADINGS`."""
    health = str(row.get("health", "unknown"))
    doing = str(row.get("doing") or "")
    cached = _number(row.get("cached_tokens_total"))
    usage = row.get("kv_usage")
    return [
        str(row.get("replica", "?")),
        doing if health in {"ok", "unknown"} else f"{health}; {doing}",
        " + ".join(filter(None, (_number(row.get("running")), _number(row.get("waiting"))))),
        f"{usage:.0%}" if isinstance(usage, int | float) else "",
        _number(row.get("prompt_tokens_total")) + (f" ({cached})" if cached else ""),
        _number(row.get("generated_tokens_total")),
        age(row["up_s"]) if "up_s" in row else "",
    ]


def _number(value: object) -> str:
    """Absent is not zero."""
    return f"{value:,}" if isinstance(value, int | float) else ""


def age(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
