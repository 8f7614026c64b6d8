"""Breaker: whether to ask a store that failed; pure, with injected time and randomness.

- Closed: ask. After a failure it is open: do not ask, for a jittered pause that doubles with each failure up to
  `longest_s`. Then one caller may ask (half open); its answer closes the breaker, its failure opens it again.
- The pauses of many processes drift apart: they lost the same store at the same moment (FIELD_REPORTS L4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import random


@dataclass(slots=True)
class Breaker:
    """`first_s`, `longest_s`: pauses before jitter, which takes away up to half."""

    first_s: float = 0.1
    longest_s: float = 2.0
    probe_s: float = 5.0
    """A probe that said nothing for so long is taken for lost."""
    random: Callable[[], float] = random
    failures: int = 0
    """Since the last success."""
    until_s: float = 0.0
    """Open until then."""

    @property
    def closed(self) -> bool:
        return self.failures == 0

    def allows(self, now_s: float) -> bool:
        """Whether to ask now. A True while it is not closed is the one probe: report how it went."""
        if self.closed:
            return True
        if now_s < self.until_s:
            return False
        self.until_s = now_s + self.probe_s
        return True

    def wait_s(self, now_s: float) -> float:
        """Until the next probe is allowed."""
        return 0.0 if self.closed else max(0.0, self.until_s - now_s)

    def succeeded(self) -> None:
        self.failures = 0
        self.until_s = 0.0

    def abandoned(self) -> None:
        """The one who asked was cancelled: nothing was learnt, and the next one may ask."""
        self.until_s = 0.0

    def failed(self, now_s: float) -> None:
        self.failures += 1
        pause_s = min(self.first_s * 2.0 ** min(self.failures - 1, 30), self.longest_s)
        self.until_s = now_s + pause_s * (0.5 + 0.5 * self.random())
