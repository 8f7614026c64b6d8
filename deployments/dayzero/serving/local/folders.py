"""Where the regions of this machine keep their files.

- The run folder holds what the regions share: keys, the secret, model files. Each region's own lie in `regions/NAME`.
  All of it is its owner's alone (0700).
- Sockets, and Ray's own files, lie in a short folder elsewhere, one a region (`short_folder`).
- A process's mark names run folder and region: what runs can be told apart without any file.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.short_folder import ShortFolder

_REGION = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # as in a fleet file


@dataclass(frozen=True, slots=True)
class FleetFolder:
    """The run folder: what the regions on this machine share, by name."""

    path: Path

    @classmethod
    def default(cls, variables: Mapping[str, str] = os.environ) -> "FleetFolder":
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
        """How the marks of all processes of this folder begin: one for each folder and user."""
        return _digest(str(os.getuid()), str(self.path))

    @property
    def lock(self) -> Path:
        return self.path / "lock"

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
    def peer_key(self) -> Path:
        """With which one region's gateway asks another's."""
        return self.path / "peer.key"

    @property
    def peers(self) -> Path:
        """Where each region of the fleet is reached; gateways follow it while they run (`serving.peer_book`)."""
        return self.path / "peers.json"

    @property
    def key_digests(self) -> Path:
        return self.path / "keys"

    @property
    def secret(self) -> Path:
        return self.path / "secret"

    @property
    def ray_token(self) -> Path:
        return self.path / "ray.token"

    def region(self, name: str) -> "RegionFolder":
        """Raises PreflightError for what cannot be a region's name."""
        if not _REGION.fullmatch(name):
            raise PreflightError(
                f"'{name[:64]}' is not a region's name: lower-case letters, digits and dashes."
            )
        return RegionFolder(self, name)

    def regions(self) -> list["RegionFolder"]:
        """Every region that was ever started here."""
        try:
            names = sorted(path.name for path in (self.path / "regions").iterdir() if path.is_dir())
        except OSError:
            return []
        return [RegionFolder(self, name) for name in names if _REGION.fullmatch(name)]

    def region_of(self, run_id: str) -> str | None:
        """The region that a process with this mark belongs to; None where it belongs to none."""
        name = run_id.removeprefix(f"{self.mark}.").split(".")[0]
        return name if run_id.startswith(f"{self.mark}.{name}.") and _REGION.fullmatch(name) else None

    def make(self) -> None:
        """Creates the folder, its owner's alone. Raises PreflightError."""
        _make(self.path, self.path, self.models)


@dataclass(frozen=True, slots=True)
class RegionFolder:
    """The files of one region on this machine, by name."""

    fleet: FleetFolder
    name: str

    @property
    def path(self) -> Path:
        return self.fleet.path / "regions" / self.name

    @property
    def mark(self) -> str:
        """How the marks of all processes of this region begin. No region's name has a dot, so none begins another's."""
        return f"{self.fleet.mark}.{self.name}."

    @property
    def state(self) -> Path:
        return self.path / "region.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def haproxy_program(self) -> Path:
        return self.path / "haproxy"

    def make(self) -> None:
        """Creates the folder, its owner's alone. Raises PreflightError."""
        _make(self.fleet.path, self.path, self.logs)

    def short(self, variables: Mapping[str, str] = os.environ) -> ShortFolder:
        """The folder for everything that needs a short path."""
        return ShortFolder.of(_digest(str(os.getuid()), str(self.fleet.path), self.name), variables)

    def link_ray(self, folder: Path) -> None:
        """`ray` in the region's folder leads to Ray's own folder and its logs."""
        link = self.path / "ray"
        if link.is_symlink() or not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(folder)


def checkout_folder() -> Path | None:
    """The checkout that this module runs from; None when it runs from an installed wheel."""
    root = Path(__file__).resolve().parents[4]
    return root if (root / "pyproject.toml").is_file() and (root / "requirements").is_dir() else None


def _digest(*words: str) -> str:
    return hashlib.sha256(":".join(words).encode()).hexdigest()[:8]


def _make(top: Path, *folders: Path) -> None:
    try:
        for folder in (top, *folders):
            folder.mkdir(parents=True, exist_ok=True)
        top.chmod(0o700)
    except OSError as error:
        raise PreflightError(
            f"The run folder {top} cannot be written ({error.strerror}). It must be yours; an earlier start "
            "as another user leaves one that is not. DAYZERO_RUN=FOLDER names another place."
        ) from error
