"""`scripts/bootstrap [--engine vllm|sim] [--dev]`: what every make target runs first."""

import argparse
import sys
import time
from pathlib import Path

from scripts.install.console import Console
from scripts.install.environment import Installation
from scripts.install.errors import InstallError
from scripts.install.locks import Wish


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bootstrap", description="Make .venv equal to the locks.")
    parser.add_argument(
        "--engine", choices=("vllm", "sim"), default="vllm", help="sim: neither torch nor vllm"
    )
    parser.add_argument("--dev", action="store_true", help="with the tools of `make test` and `make check`")
    arguments = parser.parse_args()

    started_s = time.monotonic()
    root = Path(__file__).resolve().parents[2]
    console = Console()
    wish = Wish(engine=arguments.engine == "vllm", dev=arguments.dev)
    try:
        changed = Installation(root, console).ensure(wish)
    except InstallError as error:
        print(f"\ndayzero: the install did not finish.\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndayzero: stopped. The next run starts over from uv's cache.", file=sys.stderr)
        return 130
    if changed:
        console.line(f"  installed in {time.monotonic() - started_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
