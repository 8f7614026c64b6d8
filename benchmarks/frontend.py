"""What Kimi K3's frontend costs on both sides of the engine: rendering and chaining, and decoding.

    python benchmarks/frontend.py [--vocabulary FILE] [--rounds N] [--quick] [--only render|decode]

One process. Without --vocabulary it takes the file that DAYZERO_K3_VOCABULARY names, else the small vocabulary shipped
with dayzero. Each row is the median over the rounds and, in brackets, the spread (10th to 90th percentile). Ids are
asserted equal to those made without caches.
"""

import argparse
import importlib
import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary
from dayzero.frontend.kimi_k3.vocabulary_source import find_vocabulary

HALVES = ("render", "decode")


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--vocabulary", type=Path)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--quick", action="store_true", help="a few seconds: to see that it works")
    arguments.add_argument("--only", choices=HALVES)
    options = arguments.parse_args()
    source = find_vocabulary(options.vocabulary, None, os.environ)
    vocabulary = load_vocabulary(source.path, origin=source.origin)
    print(
        f"{vocabulary.size:,} ids ({vocabulary.source}), {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for half in HALVES:
        if options.only in (None, half) and importlib.util.find_spec(f"frontend.{half}"):
            print(f"\n== {half}")
            importlib.import_module(f"frontend.{half}").run(
                vocabulary, rounds=3 if options.quick else options.rounds, quick=options.quick
            )


if __name__ == "__main__":
    main()
