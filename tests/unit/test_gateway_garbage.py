"""What the collector does in a process that serves, seen in one of its own."""

import json
import subprocess
import sys

PROGRAM = """
import gc, json, sys
from dayzero.gateway import garbage
rounds = []
if sys.argv[1] == "settled":
    garbage.settle()
gc.callbacks.append(lambda phase, info: rounds.append(info["generation"]) if phase == "start" else None)
value = json.loads("[" + "[]," * 300_000 + "1]")
made = list(rounds)
loop = []
loop.append(loop)
del loop
print(json.dumps({"young": len(made), "old": made.count(2), "frozen": gc.get_freeze_count(), "ended": gc.collect()}))
"""


def test_a_settled_process_looks_for_cycles_seldom_and_finds_them_still():
    usual, settled = run("usual"), run("settled")
    assert usual["frozen"] == 0
    assert settled["frozen"] > 1000
    assert usual["young"] > 100
    assert settled["young"] <= 3
    assert settled["old"] == 0
    assert settled["ended"] >= 1


def run(how):
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
