"""One replica as `dayzero status` shows it: a line of figures, from its last report and the gateway's own book."""

from dataclasses import asdict
from typing import Any

from dayzero.router.load import CostModel
from dayzero.serving.board import ReplicaReport

ANOTHER_VOCABULARY = (
    "its vocabulary is not the gateway's: a file was changed, `dayzero up` starts the region anew"
)


def describe(
    name: str,
    report: ReplicaReport,
    in_flight: int,
    now_s: float,
    *,
    suspect: bool = False,
    stranger: bool = False,
) -> dict[str, Any]:
    """One replica as `dayzero status` shows it; figures it did not report are absent."""
    said = report.stats
    line: dict[str, Any] = {"replica": name, "in_flight": in_flight}
    if not said:
        return line | {"health": "unknown", "doing": "has not reported yet"}
    stats, info, health = said["stats"], said["info"], said["health"]
    if suspect:
        health = {"ok": False, "reason": f"silent for {now_s - report.seen_s:.0f} s"}
    elif stranger:
        health = {"ok": False, "reason": ANOTHER_VOCABULARY}
    feed = said.get("feed") or {}
    if not feed.get("proved", True):
        line["no_affinity"] = feed["reason"]
    return line | {
        "health": "ok" if health["ok"] else health["reason"],
        "doing": doing(stats),
        "running": stats["running"],
        "waiting": stats["waiting"],
        "backlog_tokens": stats["running_prompt_tokens"],
        "kv_usage": round(stats["kv_usage"], 4),
        "cached_blocks": sum(stats["resident_blocks"].values()),
        "prompt_tokens_total": stats["prompt_tokens_total"],
        "cached_tokens_total": stats["cached_tokens_total"],
        "generated_tokens_total": stats["generated_tokens_total"],
        "requests_total": stats["requests_total"],
        "engine": info["engine"],
        "engine_version": info["engine_version"],
        "incarnation": info["incarnation"],
        "up_s": round(now_s - said["started_s"], 1),
        "report_age_s": round(now_s - said["reported_s"], 1),
    }


def told(cost: CostModel) -> dict[str, float]:
    """The coefficients that its predictions are made with, in seconds."""
    return {name: float(f"{value:.4g}") for name, value in asdict(cost).items()}


def doing(stats: dict[str, Any]) -> str:
    """What a replica is at, in words."""
    if not stats["running"] and not stats["waiting"]:
        return "idle"
    parts = []
    if stats["running_prompt_tokens"]:
        parts.append(f"prefilling {stats['running_prompt_tokens']:,} tokens")
    if stats["running"]:
        parts.append(f"generating {stats['running']}")
    if stats["waiting"]:
        parts.append(f"{stats['waiting']} waiting")
    return ", ".join(parts)
