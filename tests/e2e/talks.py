"""Conversations with a region, and what came of each turn."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.regions import MODEL, Region, wait_until

BLOCK_TOKENS = 32
SETTLE_S = 10.0


@dataclass
class Turn:
    """One answered turn."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float


@dataclass
class Talk:
    """Each turn repeats all before it, as chat clients do. `words`: roughly, of the first message."""

    region: Region
    system: str = field(default_factory=lambda: f"Ledger {uuid.uuid4()}.")
    words: int = 120
    key: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self):
        items = " ".join(f"item {number} costs {number * 7} coins," for number in range(self.words // 5))
        self.messages = [{"role": "system", "content": self.system}, {"role": "user", "content": items}]

    def say(self, **more: Any) -> Turn:
        """The next turn; asserts that it was answered."""
        began_s = time.monotonic()
        answer = httpx.post(
            f"{self.region.url}/v1/chat/completions",
            headers={"authorization": f"Bearer {self.key or self.region.key}"},
            json={"model": MODEL, "messages": self.messages, "max_tokens": 12, "temperature": 0, **more},
            timeout=120,
        )
        assert answer.status_code == 200, answer.text
        body, seconds = answer.json(), time.monotonic() - began_s
        self.messages += [body["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        usage = body["usage"]
        turn = Turn(
            answer.headers["x-request-id"],
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
            seconds,
        )
        self.turns.append(turn)
        return turn

    def decisions(self) -> Iterator[dict[str, Any]]:
        for turn in self.turns:
            yield self.region.decision(turn.request_id)


def replica_of(decision: dict[str, Any]) -> str:
    """Who answered in the end."""
    return decision["attempts"][-1]["replica"]


def settle(region: Region) -> None:
    """Until the gateway's index has all that the engines have told: their blocks stand in it, as many as they hold."""

    def settled() -> bool:
        known = region.status()["feed"]["replicas"]
        return all(
            known.get(name, {}).get("blocks") == row["cached_blocks"]
            for name, row in region.replicas().items()
        )

    wait_until(settled, SETTLE_S, region.status)
