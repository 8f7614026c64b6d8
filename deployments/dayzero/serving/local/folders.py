"""Where a local region keeps its files.

- The run folder holds keys, state, logs and model files; it is the owner's alone (0700).
- Sockets, and Ray's own files, lie in a short folder elsewhere (`short_folder`).
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.short_folder import ShortFolder


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one region on this machine, by name."""

    path: Path

    @classmethod
    def default(cls, variables: Mapping[str, str] = os.environ) -> "RunFolder":
        """`DAYZERO_RUN`, else `.run` of the checkout this module lies in, else the user's state folder."""
        if named := variables.get("DAYZERO_RUN"):
            return cls(Path(named).expanduser().absolute())
        checkout = checkout_folder()
        if checkout is not None:
            return cls(checkout / ".run")
        state = variables.get("XDG_STATE_HOME") or Path(variables.get("HOME", "/")) / ".local" / "state"
        return cls(Path(state) / "dayzero")

    @property
    def mark(self) -> str:
        """What every process of every run of this folder has in its mark: one for each folder and user."""
        return hashlib.sha256(f"{os.getuid()}:{self.path}".encode()).hexdigest()[:8]

    @property
    def state(self) -> Path:
        return self.path / "region.json"

    @property
    def lock(self) -> Path:
        return self.path / "region.lock"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def client_key(self) -> Path:
        return self.path / "key"

    @property
    def operator_key(self) -> Path:
        return self.path / "operator.key"

    @property
    def key_digests(self) -> Path:
        return self.path / "keys"

    @property
    def secret(self) -> Path:
        return self.path / "secret"

    @property
    def ray_token(self) -> Path:
        return self.path / "ray.token"

    @property
    def haproxy_program(self) -> Path:
        return self.path / "haproxy"

    def make(self) -> None:
        """Creates the folder, its owner's alone. Raises PreflightError."""
        try:
            for folder in (self.path, self.logs, self.models):
                folder.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise PreflightError(
                f"The run folder {self.path} cannot be written ({error.strerror}). It must be yours; an earlier start "
                "as another user leaves one that is not. DAYZERO_RUN=FOLDER names another place."
            ) from error

    def short(self, variables: Mapping[str, str] = os.environ) -> ShortFolder:
        """The folder for everything that needs a short path."""
        return ShortFolder.of(self.mark, variables)

    def link_ray(self, folder: Path) -> None:
        """`ray` in the run folder leads to Ray's own folder and its logs."""
        link = self.path / "ray"
        if link.is_symlink() or not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(folder)


def checkout_folder() -> Path | None:
    """The checkout that this module runs from; None when it runs from an installed wheel."""
    root = Path(__file__).resolve().parents[4]
    return root if (root / "pyproject.toml").is_file() and (root / "requirements").is_dir() else None
