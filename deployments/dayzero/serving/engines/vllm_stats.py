"""Tally: what this engine is doing and has done, from its own requests and vLLM's scheduler.

- A request counts from `generate` until its iterator ends, whatever vLLM still knows of it; so counts reach zero with
  the last one, also when vLLM's last report came a step too early.
- The backlog is what the router expects to be uncached: vLLM tells what it found only with the first output, when
  the request is no backlog any more, and nothing of how far a prompt is.
- Totals grow when their tokens are known: prompt and cached tokens with the first output, generated ones as delivered.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dayzero.engine.protocol import EngineStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import SchedulerStats


@dataclass(slots=True)
class LiveRequest:
    prompt_tokens: int
    uncached_tokens: int
    """As expected."""
    completion_tokens: int = 0
    prefilled: bool = False


class Tally:
    def __init__(self) -> None:
        self.live: dict[str, LiveRequest] = {}
        self.steps = 0
        self._waiting = 0
        self._kv_usage = 0.0
        self._prompt_tokens_total = 0
        self._cached_tokens_total = 0
        self._generated_tokens_total = 0
        self._requests_total = 0
        self._last_token_s: float | None = None

    @property
    def progress(self) -> int:
        """Changes whenever a step was made."""
        return self.steps + self._generated_tokens_total

    def begin(self, request_id: str, prompt_tokens: int, uncached_tokens: int) -> LiveRequest:
        """`uncached_tokens`: how many of the prompt's are expected to need computing."""
        live = self.live[request_id] = LiveRequest(prompt_tokens, uncached_tokens)
        self._requests_total += 1
        return live

    def end(self, request_id: str) -> None:
        del self.live[request_id]

    def delivered(self, live: LiveRequest, tokens: int, cached_tokens: int) -> None:
        """`tokens` more ids for a request; with the first of them its prompt has been worked through."""
        if not tokens:
            return
        if not live.prefilled:
            live.prefilled = True
            self._prompt_tokens_total += live.prompt_tokens
            self._cached_tokens_total += cached_tokens
        live.completion_tokens += tokens
        self._generated_tokens_total += tokens
        self._last_token_s = time.time()

    def scheduled(self, stats: "SchedulerStats | None") -> None:
        """Take vLLM's report of a step."""
        self.steps += 1
        if stats is not None:
            self._waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
            self._kv_usage = stats.kv_cache_usage

    def stats(self, resident_blocks: dict[int, int]) -> EngineStats:
        pending = [live for live in self.live.values() if not live.prefilled]
        waiting = min(self._waiting, len(pending))
        return EngineStats(
            running=len(self.live) - waiting,
            waiting=waiting,
            running_prompt_tokens=sum(live.uncached_tokens for live in pending),
            kv_usage=self._kv_usage if self.live else 0.0,
            prompt_tokens_total=self._prompt_tokens_total,
            cached_tokens_total=self._cached_tokens_total,
            generated_tokens_total=self._generated_tokens_total,
            requests_total=self._requests_total,
            resident_blocks=resident_blocks,
            last_token_s=self._last_token_s,
        )


def stat_logger_factory(tally: Tally) -> "Callable[..., StatLoggerBase]":
    """What vLLM calls per engine to get a logger; it hands every step's scheduler stats to the tally."""
    from vllm.v1.metrics.loggers import StatLoggerBase  # noqa: PLC0415 - seconds, and not in every process

    class TallyLogger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, *_: object) -> None:
            """The base class has no state of its own."""

        def record(self, scheduler_stats: "SchedulerStats | None", *_: object, **__: object) -> None:
            tally.scheduled(scheduler_stats)

        def log_engine_initialized(self) -> None:
            """Nothing to say at the start."""

    return TallyLogger
