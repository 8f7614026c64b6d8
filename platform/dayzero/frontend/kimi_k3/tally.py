"""Where the ids of one answer went, so far."""

from dataclasses import dataclass

from dayzero.frontend.protocol import TokenCounts


@dataclass(slots=True)
class Tally:
    """Fields as in `TokenCounts`. What is not decided yet is held by whoever will decide it."""

    reasoning: int = 0
    content: int = 0
    calls: int = 0
    control: int = 0
    dropped: int = 0

    def counts(self, *, calls: int, control: int, dropped: int) -> TokenCounts:
        """With those not decided yet, as they look now."""
        return TokenCounts(
            reasoning=self.reasoning,
            content=self.content,
            calls=self.calls + calls,
            control=self.control + control,
            dropped=self.dropped + dropped,
        )
