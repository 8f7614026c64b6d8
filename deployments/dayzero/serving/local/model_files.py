"""The files of the models that regions serve, made by a process of its own: the reader's memory ends with it.

As a program: `python -m dayzero.serving.local.model_files KIND FOLDER` writes lines of `SHARE TEXT`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from dayzero.config import Fleet, Weights
from dayzero.serving.local.errors import StartError
from dayzero.serving.local.ledger import MARK_VARIABLE

WEIGHTS, TOKENIZER = "weights", "tokenizer"


def folders(fleet: Fleet, region: str, models: Path) -> dict[str, Path | None]:
    """Where the files of each model that a region serves lie, by the model's name; None where it has none."""
    return {pool.model: _folder(fleet.model_of(pool).weights, models) for pool in fleet.pools(region)}


def _folder(weights: Weights, models: Path) -> Path | None:
    if weights.source == "none":
        return None
    return Path(weights.path) if weights.path else models / weights.source


def needed(fleet: Fleet, regions: Iterable[str], models: Path) -> dict[Path, str]:
    """The folders to be made, and what each must hold. A simulated engine needs no weights, only the tokenizer."""
    wanted: dict[Path, str] = {}
    for region in regions:
        places = folders(fleet, region, models)
        for pool in fleet.pools(region):
            model = fleet.model_of(pool)
            if model.weights.source != "smollm2":
                continue
            folder = places[model.name]
            assert folder is not None
            wanted[folder] = WEIGHTS if pool.engine == "vllm" else wanted.get(folder, TOKENIZER)
    return wanted


def ensure(kind: str, folder: Path, say: Callable[[str], None], *, mark: str) -> None:
    """Makes a folder whole, from nothing or from what is there. Raises StartError with the maker's words."""
    command = [sys.executable, "-m", "dayzero.serving.local.model_files", kind, str(folder)]
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", MARK_VARIABLE: mark},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            say(line.strip())
    if process.returncode != 0:
        raise StartError("The model's files could not be made.", log="\n".join(said[-20:]))


def main() -> int:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    from dayzero.serving import weights  # noqa: PLC0415 heavy, and needed in this process only
    from dayzero.serving.errors import WeightsError  # noqa: PLC0415

    make = weights.ensure_smollm2 if kind == WEIGHTS else weights.ensure_tokenizer
    try:
        make(folder, lambda share, what: print(f"{share:.0%} {what}"))
    except WeightsError as error:
        print(error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
