"""Predicted equals reported: what the router believes of a cache is what vLLM's next request finds in it.

Real vLLM on tiny models, through our engine, its events and the translator, over a cache so small that it evicts all
the time. The feed has settled for a request when it has brought every batch that the engine made before the request was
sent; each batch says when it was made, and the first one made later proves that none is under way.
"""

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager

import numpy as np
import pytest

from dayzero.engine.translation import life_of
from dayzero.engine.translation_probe import Verdict, probe
from dayzero.engine.types import pack_ids
from dayzero.router.chain import Chain, Namespace
from tests.engine.talks import Followed, Talks, Turn
from tests.engine.vllm_support import (
    LLAMA,
    QWEN3_NEXT,
    VOCABULARY,
    collect,
    needs_vllm,
    run_dir,
    started,
    tiny_config,
    write_config,
)

pytestmark = [*needs_vllm, pytest.mark.slow]

REQUESTS = 520
LONGEST_TOKENS = 640
ANSWERS = (1, 2, 4, 9)

# A state as small as a page of 32 tokens, so that vLLM has no need to raise the block.
SMALL_STATE = QWEN3_NEXT | {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
}
ENGINES = {
    "llama": (LLAMA, {"block_tokens": 32}, {}),
    "qwen3_next": (SMALL_STATE, {"block_tokens": 32}, {}),
    "qwen3_next, fine unit": (SMALL_STATE, {"block_tokens": 64}, {"prefix_match_unit": 16}),
}


class Settled(Followed):
    """Follows a real engine's events as they come, and predicts each turn when the feed has settled for it."""

    def __init__(self, engine):
        super().__init__(life_of(engine.info, "r"))
        self.predicted = []
        self._asked = deque()
        self._took = asyncio.Event()
        self._reading = asyncio.create_task(self._read(engine.kv_events()))

    async def _read(self, batches):
        async for batch in batches:
            while self._asked and self._asked[0][0] < batch.time_s:
                _, turn = self._asked.popleft()
                self.predicted.append(self.reusable(turn.ids, turn.salt))
            self.take(batch)
            self._took.set()

    def ask(self, turn: Turn):
        """Call it right before the turn is sent."""
        self._asked.append((time.time(), turn))

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition():
                self._took.clear()
                await self._took.wait()

    async def close(self):
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


@asynccontextmanager
async def followed(name, folder):
    config, settings, extra = ENGINES[name]
    model = write_config(folder / "model", config)
    async with run_dir() as run:
        settings |= {
            "load_format": "dummy",
            "max_model_tokens": LONGEST_TOKENS + 64,
            "max_num_batched_tokens": 256,
            "kv_cache_bytes": 64 << 20,
            "max_num_seqs": 4,
            "extra": extra | {"num_gpu_blocks_override": 64},
        }
        async with started(tiny_config(model, run, **settings)) as engine:
            follower = Settled(engine)
            try:
                yield engine, follower
            finally:
                await follower.close()


async def prove(engine, follower, talks):
    """The translation's proof: a probe in two turns."""
    layout = follower.life.layout
    ids = talks.random(4 * layout.block_tokens + layout.unit_tokens + 1)
    for number, tokens in enumerate((2 * layout.block_tokens + 1, len(ids))):
        await collect(engine, follower.request(f"probe{number}", Turn(ids[:tokens], "", 1)))
    chain = Chain.of(pack_ids(ids), Namespace(follower.life.model, layout.unit_tokens))
    await follower.until(lambda: probe(follower.translator, chain, len(ids)).ok)
    return probe(follower.translator, chain, len(ids))


def three_siblings(talks):
    """Prompts that share 300 tokens: in a hybrid the second makes the junction that the third hits."""
    shared = talks.random(300)
    return [Turn(np.concatenate([shared, talks.random(60 + i)]), "", 4) for i in range(3)]


@pytest.mark.parametrize("name", ENGINES)
async def test_every_hit_of_the_real_engine_is_predicted(name, tmp_path):
    talks = Talks(4, LONGEST_TOKENS, ANSWERS, VOCABULARY)
    async with followed(name, tmp_path) as (engine, follower):
        assert engine.info.cache_blocks <= 64
        layout = follower.life.layout
        assert (await prove(engine, follower, talks)).verdict is Verdict.EQUAL
        reported = []
        siblings = three_siblings(talks)
        for number in range(REQUESTS):
            turn = siblings[number] if number < len(siblings) else talks.next()
            request = follower.request(f"r{number}", turn)
            follower.ask(turn)
            answer, last = await collect(engine, request)
            reported.append(last.usage.cached_tokens)
            talks.answered(turn, answer)
        new = Turn(talks.random(4 * layout.block_tokens), "", 1)
        await collect(engine, follower.request("one more, for the feed to go on", new))
        await follower.until(lambda: len(follower.predicted) == REQUESTS)
        wrong = [
            (number, told, real)
            for number, (told, real) in enumerate(zip(follower.predicted, reported, strict=True))
            if told != real
        ]
        hits = sum(cached > 0 for cached in reported)
        inside = sum(cached % layout.block_tokens > 0 for cached in reported)
        figures = (
            f"{name}: {REQUESTS} requests, blocks of {layout.block_tokens}, unit {layout.unit_tokens}, "
            f"{follower.evictions} evictions, {hits} hits, {inside} inside a block, {len(wrong)} differences"
        )
        print(figures)
        assert wrong == [], f"{figures}; (number, predicted, reported)"
        junction = 300 // layout.block_tokens * layout.block_tokens
        assert reported[:3] == [0, 0 if layout.state_groups else junction, junction], reported[:3]
        assert follower.evictions >= 200, figures
        assert hits >= REQUESTS // 5, figures
        assert (inside > 0) is (layout.unit_tokens < layout.block_tokens), figures
        follower.check()
