"""Predicted equals recorded: vLLM's own cached tokens, request by request, against the router's view of its events.

The events are those of the replay, which `test_recordings.py` proves equal to the recorded ones, hash for hash. Requests
sent one at a time are predicted exactly. Of those sent together only the first of a batch can be: the others are
admitted while the ones before them still change the cache, so before they are sent the prediction is not yet decided.
"""

import itertools

import pytest

from dayzero.engine.kv_events import KVEventBatch
from dayzero.router.changes import Layout, Life
from tests.engine.recipes import SCENARIOS
from tests.engine.talks import Followed
from tests.engine.test_recordings import Replay, load


def life(config) -> Life:
    numbered = list(enumerate(kind for kind, _ in config["groups"]))
    layout = Layout(
        config["unit_tokens"],
        config["block_tokens"],
        tuple(number for number, kind in numbered if kind == "attention"),
        tuple(number for number, kind in numbered if kind == "state"),
    )
    return Life(replica="r", incarnation="1", model="m", layout=layout, blocks=config["blocks"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_recorded_hits_are_predicted(scenario):
    recording = load(scenario.name)
    replay, followed = Replay(recording["config"]), Followed(life(recording["config"]))
    batches = itertools.groupby(recording["requests"], key=lambda request: request["batch"])
    differences = claimed = 0
    for sequence, (_, group) in enumerate(batches):
        requests = list(group)
        predicted = []
        for name, turn in replay.turns(requests).items():
            followed.request(name, turn)
            predicted.append(followed.reusable(turn.ids, turn.salt))
        replay.run(requests)
        followed.take(KVEventBatch(sequence=sequence, time_s=0.0, events=replay.told))
        settled = 1 if scenario.at_once > 1 else len(requests)
        claimed += settled
        differences += sum(
            told != request["cached_tokens"]
            for told, request in zip(predicted[:settled], requests[:settled], strict=True)
        )
    print(f"{scenario.name}: {claimed} predicted, {differences} differences, {followed.evictions} evictions")
    assert differences == 0
    assert claimed >= (20 if scenario.at_once > 1 else 100)
    assert followed.evictions > 50
    followed.check()
