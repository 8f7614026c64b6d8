"""Free space before an install, and the size of what is there.

The needs are measured (docs/install.md) and rounded up; on one file system uv links its cache into `.venv`, so that
the bytes count once, on two they are copied and count on both.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from scripts.install.errors import InstallError
from scripts.install.locks import Wish

MB = 1_000_000
BASE_MB = 700
ENGINE_MB = 3_000
DEV_MB = 300


def needed_bytes(wish: Wish) -> int:
    """Bytes that an install of `wish` takes from nothing."""
    product = ENGINE_MB if wish.engine else BASE_MB
    return (product + (DEV_MB if wish.dev else 0)) * MB


def existing_parent(path: Path) -> Path:
    """The nearest folder on the way up that exists: where a folder to be made would lie."""
    while not path.exists():
        path = path.parent
    return path


def uv_cache_folder(variables: Mapping[str, str]) -> Path:
    """Where uv keeps its cache, by uv's own rule."""
    if named := variables.get("UV_CACHE_DIR"):
        return Path(named)
    base = variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME", "/")) / ".cache"
    return Path(base) / "uv"


def require_space(need: int, places: Mapping[str, Path], variables: Mapping[str, str]) -> None:
    """Raises InstallError when a file system that will be written to has less than `need` bytes free."""
    if variables.get("DAYZERO_IGNORE_DISK") == "1":
        return
    seen: set[int] = set()
    for what, place in places.items():
        folder = existing_parent(place)
        device = folder.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(folder).free
        if free < need:
            raise InstallError(
                f"Not enough disk for {what} ({place}): the install needs {need // MB:,} MB, {free // MB:,} MB are free. "
                "Free some space, or `make up ENGINE=sim` (700 MB, without torch and vllm). A cache elsewhere: "
                "UV_CACHE_DIR=FOLDER. To try all the same: DAYZERO_IGNORE_DISK=1."
            )


def size_bytes(folder: Path) -> int:
    """Bytes on disk under a folder; each inode once."""
    total = 0
    seen: set[int] = set()
    for where, _, files in os.walk(folder):
        for name in files:
            try:
                status = (Path(where) / name).lstat()
            except OSError:  # it may go while we count
                continue
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total
