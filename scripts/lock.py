"""`make lock`: recompiles requirements/*.lock from pyproject.toml and requirements/*.in.

- The engine lock is resolved first; base and dev are constrained by it, so that one version of everything runs.
- Locks hold versions and hashes, never an address.
- Versions already locked are kept unless `--upgrade` is given, or a name with `--upgrade-package`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from scripts.install.network import PipSettings

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path("requirements")
# name, inputs, constraints
LOCKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "engine",
        ("pyproject.toml", "--extra=engine-cpu", "requirements/base.in", "requirements/engine.in"),
        (),
    ),
    ("base", ("pyproject.toml", "requirements/base.in"), ("requirements/engine.lock",)),
    ("dev", ("requirements/dev.in",), ("requirements/engine.lock",)),
    ("uv", ("requirements/uv.in",), ("requirements/engine.lock",)),
)


def compile_lock(
    name: str, inputs: tuple[str, ...], constraints: tuple[str, ...], passed_on: list[str]
) -> None:
    settings = PipSettings.parse(_output([sys.executable, "-m", "pip", "config", "list"]))
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", *inputs]
    command += [word for file in constraints for word in ("--constraint", file)]
    command += [
        "--overrides",
        str(REQUIREMENTS / "overrides.txt"),
        "--python-version",
        "3.11",
        "--generate-hashes",
    ]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock"]
    command += [*settings.uv_arguments(), *passed_on, "--output-file", str(REQUIREMENTS / f"{name}.lock")]
    variables = {**os.environ, **settings.uv_environment(os.environ)}
    # Hashes come from PyPI's own list: a partial mirror would lock only the files it happens to have.
    for partial in ("UV_INDEX", "UV_INDEX_STRATEGY"):
        variables.pop(partial, None)
    subprocess.run(command, cwd=ROOT, env=variables, check=True)


def _output(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="make lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true")
    parser.add_argument("--upgrade-package", action="append", default=[])
    arguments = parser.parse_args()
    passed_on = ["--upgrade"] if arguments.upgrade else []
    passed_on += [word for name in arguments.upgrade_package for word in ("--upgrade-package", name)]
    for name, inputs, constraints in LOCKS:
        print(f"requirements/{name}.lock")
        compile_lock(name, inputs, constraints, passed_on)


if __name__ == "__main__":
    main()
