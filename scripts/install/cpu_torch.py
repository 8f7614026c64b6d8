"""Where the CPU build of torch comes from, and the check that no CUDA build came instead.

- PyPI has no CPU build. A wheel folder that pip is configured with is asked first, then pip's indexes together with
  PyTorch's own, whose address stands in requirements/torch-index.txt and nowhere else.
- The engine lock pins one version with its hash, so every source gives the same file or none.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from scripts.install.errors import InstallError

_PINNED = re.compile(r"^torch==(?P<version>\S+)(?: *\\\n +--hash=\S+)+", re.MULTILINE)


def pinned_block(lock: str) -> tuple[str, str]:
    """The version of torch in a lock, and its lines (the pin and its hashes) as a requirements file of their own."""
    match = _PINNED.search(lock)
    if match is None or not match["version"].endswith("+cpu"):
        raise InstallError("requirements/engine.lock pins no CPU build of torch. `make lock` recompiles it.")
    return match["version"], match[0] + "\n"


def folder_with_wheel(folders: Iterable[Path], version: str) -> Path | None:
    """The first folder that holds torch's wheel in `version` for CPython 3.11."""
    for folder in folders:
        for wheel in folder.glob("torch-*.whl"):
            if unquote(wheel.name).startswith(f"torch-{version}-cp311-"):
                return folder
    return None


def index_address(root: Path) -> str:
    """PyTorch's own index of CPU builds: the one address this repository names."""
    lines = (root / "requirements" / "torch-index.txt").read_text().splitlines()
    return next(line for line in lines if line and not line.startswith("#"))


def refuse_cuda(environment: Path) -> None:
    """Raises InstallError when an environment holds a torch that is not a CPU build, or CUDA's libraries."""
    (packages,) = environment.glob("lib/python3.11/site-packages")
    names = sorted(path.name for path in packages.glob("*.dist-info"))
    wrong = [name for name in names if name.startswith(("nvidia_", "cuda_", "triton-"))]
    wrong += [name for name in names if name.startswith("torch-") and "+cpu" not in name]
    if wrong:
        raise InstallError(
            f"A CUDA build came into .venv ({', '.join(wrong)}); this environment is for CPUs. "
            "`make clean install` starts over; GPU hosts use the extra `engine-cuda` instead (docs/install.md)."
        )
