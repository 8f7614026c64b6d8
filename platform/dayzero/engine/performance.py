"""How long a step takes: the performance model of one replica, calibrated in `performance.json`.

- Pure functions of what a step computes (`StepLoad`); the coefficients and their derivation stand in the data
  file. Nothing here knows a clock; `time_scale` is the caller's factor on every result.
- A step's time is: a base; the experts it must read, which saturates with its tokens; each prefilled token and
  the positions it attends to; each decoding sequence and the KV it reads.
- Where the fit is off: short prompts come out faster than estimates say (18 % at 8,192 tokens, more below: launch
  costs are left out). One set of coefficients stands for a frontier measured on several layouts: its fastest point
  is TP16 (we are 12 % slower), and from batch 16 up, data-parallel attention makes decoding up to 30 % faster than
  TP8 could be. Speculation is not modelled.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes. Context tokens: for each computed token the positions it attends to, summed."""

    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    decode_sequences: int = 0
    decode_context_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """The coefficients; all zero is an engine that takes no time."""

    base_s: float = 0.0
    spread_s: float = 0.0
    spread_tokens: float = 1.0
    sequence_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_context_token_s: float = 0.0
    decode_context_token_s: float = 0.0

    def seconds(self, load: StepLoad) -> float:
        """The step's time; 0 for a step that computes nothing."""
        if not load.tokens:
            return 0.0
        spread = 1 - math.exp(-(load.tokens - 1) / self.spread_tokens)
        return (
            self.base_s
            + self.spread_s * spread
            + self.sequence_s * max(load.decode_sequences - 1, 0)
            + self.prefill_token_s * load.prefill_tokens
            + self.prefill_context_token_s * load.prefill_context_tokens
            + self.decode_context_token_s * load.decode_context_tokens
        )

    def prefill_s(self, prompt_tokens: int, *, cached_tokens: int = 0, batched_tokens: int) -> float:
        """Prefill of one prompt on an idle replica, in chunks of `batched_tokens`, after a hit."""
        total_s = 0.0
        for start in range(cached_tokens, prompt_tokens, batched_tokens):
            tokens = min(batched_tokens, prompt_tokens - start)
            context = tokens * start + tokens * (tokens + 1) // 2
            total_s += self.seconds(StepLoad(prefill_tokens=tokens, prefill_context_tokens=context))
        return total_s

    def decode_step_s(self, sequences: int, context_tokens: int) -> float:
        """One step of so many sequences that decode, each at `context_tokens`."""
        return self.seconds(
            StepLoad(decode_sequences=sequences, decode_context_tokens=sequences * context_tokens)
        )
