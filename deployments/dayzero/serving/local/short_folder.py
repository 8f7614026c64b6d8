"""The folder of sockets and of Ray's files: short, since a Unix socket's path has room for 107 bytes, and private.

- The folder itself is its owner's alone (0700). Ray opens its own part of it to everyone, so that part lies inside.
- A link or a folder that somebody else has laid in its place is refused.
- After a run, the last session's logs are kept for whoever asks why; the rest goes, and all of it where there are none.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dayzero.serving.local.errors import PreflightError

# The longest path below it is HAProxy's, which may have 97 bytes: h/<a node's id, 56 digits>/metrics.sock.
_LONGEST_BYTES = 97 - len("/h/") - 56 - len("/metrics.sock")


@dataclass(frozen=True, slots=True)
class ShortFolder:
    path: Path

    @classmethod
    def of(cls, mark: str, variables: Mapping[str, str] = os.environ) -> "ShortFolder":
        """In the temporary folder, where its path leaves room for sockets; the same at every start."""
        name = f"dayzero-{mark}"
        base = Path(variables.get("TMPDIR") or tempfile.gettempdir())
        if len(os.fsencode(base / name)) > _LONGEST_BYTES:
            base = Path("/tmp")  # noqa: S108 what lies in it is checked to be ours
        return cls(base / name)

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    @property
    def haproxy(self) -> Path:
        return self.path / "h"

    @property
    def engines(self) -> Path:
        return self.path / "engines"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def store_socket(self) -> Path:
        return self.store / "valkey.sock"

    @property
    def store_pid(self) -> Path:
        return self.store / "valkey.pid"

    def make(self) -> None:
        """Raises PreflightError when it is somebody else's."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            status = self.path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                raise PreflightError(
                    f"{self.path} is not a folder of yours. Remove it; another DAYZERO_RUN gives another name."
                )
            self.path.chmod(0o700)
            for folder in (self.ray, self.haproxy, self.engines, self.store):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise PreflightError(
                f"{self.path} cannot be made: {error.strerror}. Another DAYZERO_RUN gives another name."
            ) from error

    def keep_logs_only(self) -> None:
        if not self.path.is_dir() or self.path.is_symlink() or self.path.lstat().st_uid != os.getuid():
            return
        for folder in (self.haproxy, self.engines, self.store):
            shutil.rmtree(folder, ignore_errors=True)
        sessions = sorted(path for path in self.ray.glob("session_*") if not path.is_symlink())
        for session in sessions[:-1]:
            shutil.rmtree(session, ignore_errors=True)
        for part in (part for session in sessions[-1:] for part in session.iterdir() if part.name != "logs"):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
        if not any(path.is_file() for session in sessions[-1:] for path in session.rglob("*")):
            shutil.rmtree(self.path, ignore_errors=True)
