"""Prompts as recipes: how a recorded conversation is made, shared by the recorder and the replay.

- A recipe is a list of parts: `["random", seed, tokens]`, `["prompt", request, tokens]` (the first tokens of an
  earlier request's prompt) or `["output", request]` (what an earlier request generated).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Recipe:
    parts: tuple[tuple, ...]
    salt: str = ""

    def to_json(self) -> dict:
        return {"parts": [list(part) for part in self.parts]} | ({"salt": self.salt} if self.salt else {})

    @classmethod
    def from_json(cls, data: dict) -> "Recipe":
        return cls(tuple(tuple(part) for part in data["parts"]), data.get("salt", ""))


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    model: str
    blocks: int
    batched_tokens: int
    max_model_tokens: int = 1024
    seed: int = 1
    random_requests: int = 90
    at_once: int = 1
    """Requests sent together; their events are recorded with the last of them."""
    outputs: tuple[int, ...] = (1, 3, 8, 20, 45)
    """Lengths of the random requests' outputs; long ones beside each other run out of blocks."""
    engine_args: dict = field(default_factory=dict)


SCENARIOS = (
    Scenario(
        "llama",
        "llama",
        blocks=26,
        batched_tokens=256,
        max_model_tokens=720,
        engine_args={"block_size": 32},
    ),
    Scenario(
        "llama_concurrent",
        "llama",
        blocks=26,
        batched_tokens=256,
        max_model_tokens=720,
        seed=6,
        at_once=4,
        outputs=(20, 60, 100, 160),
        engine_args={"block_size": 32},
    ),
    Scenario("qwen3_next", "qwen3_next", blocks=64, batched_tokens=1024, engine_args={"block_size": 32}),
    Scenario(
        "qwen3_next_chunked",
        "qwen3_next",
        blocks=64,
        batched_tokens=96,
        seed=2,
        engine_args={"block_size": 32},
    ),
    Scenario(
        "qwen3_next_tight",
        "qwen3_next",
        blocks=36,
        batched_tokens=512,
        max_model_tokens=800,
        seed=3,
        engine_args={"block_size": 32},
    ),
    Scenario(
        "qwen3_next_concurrent",
        "qwen3_next",
        blocks=48,
        batched_tokens=256,
        seed=7,
        at_once=4,
        outputs=(20, 60, 100, 160),
        engine_args={"block_size": 32},
    ),
    Scenario(
        "qwen3_next_fine_concurrent",
        "qwen3_next",
        blocks=32,
        batched_tokens=256,
        seed=8,
        at_once=4,
        outputs=(60, 120, 200),
        engine_args={"block_size": 64, "prefix_match_unit": 32},
    ),
    Scenario(
        "qwen3_next_fine_unit",
        "qwen3_next",
        blocks=64,
        batched_tokens=1024,
        seed=4,
        engine_args={"block_size": 64, "prefix_match_unit": 16},
    ),
    Scenario(
        "qwen3_next_interval",
        "qwen3_next",
        blocks=64,
        batched_tokens=64,
        seed=5,
        engine_args={"block_size": 32, "prefix_cache_retention_interval": 64},
    ),
)


def expand(recipe: Recipe, prompts: list, outputs: list) -> np.ndarray:
    pieces = []
    for part in recipe.parts:
        match part:
            case ("random", seed, tokens):
                pieces.append(np.random.default_rng(seed).integers(10, 4000, size=tokens, dtype=np.uint32))
            case ("prompt", request, tokens):
                pieces.append(prompts[request][:tokens])
            case ("output", request):
                pieces.append(np.asarray(outputs[request], dtype=np.uint32))
    return np.concatenate(pieces)


def conversations(scenario: Scenario) -> Iterator[tuple[Recipe, int]]:
    """Scripted requests first (siblings, repeats, turns, salts), then random conversations."""
    yield from _scripted()
    yield from _random(scenario)


def _scripted() -> Iterator[tuple[Recipe, int]]:
    shared = ("random", 1, 300)
    yield Recipe((shared, ("random", 2, 60))), 4  # 0: A
    yield Recipe((shared, ("random", 3, 61))), 4  # 1: B, a sibling
    yield Recipe((shared, ("random", 4, 60))), 4  # 2: C, the third
    yield Recipe((shared, ("random", 5, 59))), 4  # 3: D
    yield Recipe((shared, ("random", 3, 61))), 4  # 4: B again
    turn = (shared, ("random", 3, 61), ("output", 4), ("random", 6, 40))
    yield Recipe(turn), 40  # 5: B's second turn, a long answer
    yield Recipe((*turn, ("output", 5), ("random", 7, 33))), 8  # 6: the third turn
    yield Recipe((shared, ("random", 3, 61)), salt="another tenant"), 4  # 7
    yield Recipe((shared, ("random", 3, 61)), salt="another tenant"), 4  # 8
    block_aligned = ("random", 8, 256)
    yield Recipe((block_aligned,)), 4  # 9: ends on a block
    yield Recipe((block_aligned,)), 4  # 10
    yield Recipe((("random", 9, 5),)), 70  # 11: short prompt, long answer
    yield Recipe((("random", 9, 5), ("output", 11), ("random", 10, 30))), 4  # 12


def _random(scenario: Scenario) -> Iterator[tuple[Recipe, int]]:
    dice = random.Random(scenario.seed)
    number = 13
    roots = [("random", 100 + i, dice.choice([96, 200, 257, 330])) for i in range(4)]
    talks: list[tuple[tuple, int]] = []  # parts so far, the last request's number
    for _ in range(scenario.random_requests):
        choice = dice.random()
        fresh = ("random", 1000 + number, dice.randrange(1, 90))
        if choice < 0.35 or not talks:
            parts: tuple = (dice.choice(roots), fresh)
        elif choice < 0.75:
            before, last = dice.choice(talks[-5:])
            parts = (*before, ("output", last), fresh)
        elif choice < 0.87:
            parts = dice.choice(talks)[0]
        else:
            parts = (("random", 5000 + number, dice.randrange(20, 400)),)
        max_tokens = dice.choice(scenario.outputs)
        if _bound(parts) + max_tokens > scenario.max_model_tokens * 3 // 5:
            parts = (dice.choice(roots), fresh)
        yield Recipe(parts), max_tokens
        talks.append((parts, number))
        number += 1


def _bound(parts: tuple) -> int:
    return sum(part[2] if part[0] == "random" else 160 for part in parts)
