"""Scheduler: continuous batching over the block manager, step by step, as vLLM 0.32 does it. Pure; no clock.

- A step first serves what runs, in order of admission, then admits from the queue in order of arrival, within a
  budget of tokens and a number of sequences. Prompts are prefilled in chunks.
- In hybrid models a chunk ends where a state must be kept: on blocks, at the prompt's tail, at a junction.
- When blocks run out the request admitted last gives its blocks back and starts again later (recompute); in such
  a step nobody is admitted. The first of the running requests always gets on, so there is no deadlock.
- One request is admitted only if its whole prompt fits the free blocks.
"""

from collections import deque
from dataclasses import dataclass, field

from dayzero.engine.block_manager import BlockManager, CachedSequence
from dayzero.engine.performance import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """`batched_tokens`: tokens computed in one step. `sequences`: requests that run at once."""

    batched_tokens: int
    sequences: int
    max_model_tokens: int


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """A request's place in the schedule. `cached_tokens`: its hit when first admitted, None before."""

    request_id: str
    sequence: CachedSequence
    cached_tokens: int | None = None
    preemptions: int = 0

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens are still to be computed before the next one can be sampled."""
        return self.sequence.computed_tokens < self.sequence.tokens


@dataclass(slots=True)
class Step:
    """What one step computes. The sums are what its time depends on.

    `work`: each request with its tokens. `prefill_context_tokens`: for each prefilled token, the positions it
    attends to, summed. `decode_context_tokens`: the same for decoded ones. `preempted` gave their blocks back.
    """

    work: list[tuple[ScheduledRequest, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    decode_sequences: int = 0
    decode_context_tokens: int = 0
    preempted: int = 0

    @property
    def load(self) -> StepLoad:
        return StepLoad(
            self.prefill_tokens,
            self.prefill_context_tokens,
            self.decode_sequences,
            self.decode_context_tokens,
        )

    def add(self, request: ScheduledRequest, tokens: int, start: int) -> None:
        self.work.append((request, tokens))
        if tokens == 1 and start >= request.sequence.prompt_tokens:
            self.decode_sequences += 1
            self.decode_context_tokens += start
        else:
            self.prefill_tokens += tokens
            self.prefill_context_tokens += tokens * start + tokens * (tokens + 1) // 2


class Scheduler:
    """See the module's docstring. One step: `schedule`, compute, `complete`; then tokens are appended."""

    def __init__(self, manager: BlockManager, limits: BatchLimits) -> None:
        self._manager = manager
        self._limits = limits
        self.running: list[ScheduledRequest] = []
        self.waiting: deque[ScheduledRequest] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: ScheduledRequest) -> None:
        self.waiting.append(request)

    def remove(self, request: ScheduledRequest) -> None:
        """Forget a request that ended, wherever it stands; its cached blocks stay findable."""
        if request in self.running:
            self.running.remove(request)
            self._manager.free(request.sequence)
        elif request in self.waiting:
            self.waiting.remove(request)

    def schedule(self) -> Step:
        """The next step; its blocks are taken and cached. An empty step means: nothing could run now."""
        step = Step()
        self._manager.new_step()
        budget = self._serve_running(step, self._limits.batched_tokens)
        if not step.preempted:
            self._admit(step, budget)
        self._manager.end_schedule()
        for request, tokens in step.work:
            request.sequence.computed_tokens += tokens
        return step

    def _serve_running(self, step: Step, budget: int) -> int:
        manager, index = self._manager, 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            sequence = request.sequence
            start = sequence.computed_tokens
            tokens = min(sequence.tokens - start, budget)
            if tokens == 1 and manager.is_quiet(sequence):
                step.add(request, 1, start)
                budget -= 1
                index += 1
                continue
            tokens = self._chunk(sequence, start, tokens)
            if tokens == 0:
                index += 1
                continue
            if not self._make_room(step, request, tokens):
                break
            step.add(request, tokens, start)
            budget -= tokens
            index += 1
        return budget

    def _make_room(self, step: Step, request: ScheduledRequest, tokens: int) -> bool:
        """Take the blocks of a running request's step, from later ones if need be; False if it had to yield."""
        while not self._manager.allocate(request.sequence, tokens):
            victim = self.running.pop()
            self._manager.free(victim.sequence)
            victim.preemptions += 1
            self.waiting.appendleft(victim)
            step.preempted += 1
            if victim is request:
                return False
        return True

    def _admit(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._limits.sequences:
            request = self.waiting[0]
            sequence = request.sequence
            hit = self._manager.lookup(sequence)
            sequence.junction_tokens = hit.junction_tokens
            tokens = self._chunk(sequence, hit.tokens, min(sequence.tokens - hit.tokens, budget))
            if tokens == 0 or not self._manager.allocate(sequence, tokens, hit):
                return
            self.waiting.popleft()
            self.running.append(request)
            if request.cached_tokens is None:
                request.cached_tokens = hit.tokens
            sequence.computed_tokens = hit.tokens
            step.add(request, tokens, hit.tokens)
            budget -= tokens

    def _chunk(self, sequence: CachedSequence, start: int, tokens: int) -> int:
        """How many of `tokens` to compute from `start`, so that states end up where they can be reused."""
        layout = self._manager.layout
        prefill_end = max(sequence.prompt_tokens, sequence.tokens - 1)
        if not layout.hybrid or start >= prefill_end:
            return tokens
        block = layout.block_tokens
        end = start + tokens
        if end < prefill_end:
            aligned = end // block * block
            # A block wider than the budget is crossed in several chunks.
            if aligned > start or block <= self._limits.batched_tokens:
                end = aligned
        stops = [(sequence.tokens - 1) // block * block]
        if start % block:
            stops.append((start // block + 1) * block)
        tail = (sequence.prompt_tokens - 1) // layout.unit_tokens * layout.unit_tokens
        if layout.fine and stops[0] < tail < sequence.prompt_tokens:
            stops.append(tail)
        if start < sequence.junction_tokens < end:
            stops.append(start + (sequence.junction_tokens - start) // block * block)
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)
