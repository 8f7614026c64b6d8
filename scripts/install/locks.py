"""Which locks an install needs, and the stamp that says which it has.

- The engine lock contains the base lock, at the same versions: having it satisfies the simulated engine.
- What is installed is never taken away by a smaller wish: the result is the union of what is there and what is wanted.
- A stamp speaks for one environment at one path, made from one set of lock contents and one project file.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Engine = Literal["sim", "vllm"]

STAMP_NAME = "dayzero-install.json"


@dataclass(frozen=True, slots=True)
class Wish:
    """What an environment holds: the product always, the real engine and the development tools if asked."""

    engine: bool
    dev: bool

    def union(self, other: Self | None) -> "Wish":
        if other is None:
            return self
        return Wish(engine=self.engine or other.engine, dev=self.dev or other.dev)

    def covers(self, other: Self) -> bool:
        return self.union(other) == self

    @property
    def lock_names(self) -> tuple[str, ...]:
        product = "engine.lock" if self.engine else "base.lock"
        return (product, "dev.lock") if self.dev else (product,)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The record of a finished install."""

    wish: Wish
    inputs: dict[str, str]  # file name → sha256 of its content
    python: str
    prefix: str  # scripts in an environment hold its path: a moved one is not whole

    def to_json(self) -> str:
        record = {
            "engine": self.wish.engine,
            "dev": self.wish.dev,
            "inputs": self.inputs,
            "python": self.python,
            "prefix": self.prefix,
        }
        return json.dumps(record, indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, environment: Path) -> "Stamp | None":
        """The stamp of an environment; None where there is none or it cannot be read."""
        try:
            record = json.loads((environment / STAMP_NAME).read_text())
            wish = Wish(engine=bool(record["engine"]), dev=bool(record["dev"]))
            return cls(wish, dict(record["inputs"]), str(record["python"]), str(record["prefix"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, environment: Path) -> None:
        draft = environment / f"{STAMP_NAME}.{os.getpid()}"
        draft.write_text(self.to_json())
        draft.replace(environment / STAMP_NAME)


def remove_stamp(environment: Path) -> None:
    (environment / STAMP_NAME).unlink(missing_ok=True)


def inputs_of(root: Path, wish: Wish) -> dict[str, str]:
    """The content hashes of every file that decides what an install of `wish` contains."""
    files = [root / "requirements" / name for name in ("uv.lock", *wish.lock_names)]
    files.append(root / "pyproject.toml")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def is_whole(environment: Path, stamp: Stamp | None) -> bool:
    """Whether an environment was finished, still stands where it was made, and its Python still exists."""
    if stamp is None or stamp.prefix != str(environment):
        return False
    return os.access(
        environment / "bin" / "python", os.X_OK
    )  # follows the link to the Python it was made from


def is_current(root: Path, environment: Path, wanted: Wish) -> bool:
    """Whether nothing is to be done for `wanted`."""
    stamp = Stamp.read(environment)
    if stamp is None or not is_whole(environment, stamp) or not stamp.wish.covers(wanted):
        return False
    return stamp.inputs == inputs_of(root, stamp.wish)
