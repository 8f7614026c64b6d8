"""Makes one environment hold what a wish names: the steps of an install, in order.

- Every step may be killed at any point: without the stamp, the next run starts from an empty environment.
- One install at a time: a second one waits for the first.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.install import cpu_torch, disk, locks
from scripts.install.console import Console, Step
from scripts.install.errors import InstallError, explain
from scripts.install.locks import Stamp, Wish
from scripts.install.network import PipSettings
from scripts.install.tools import run


@dataclass(slots=True)
class Installation:
    """One run of the installer on one checkout."""

    root: Path
    console: Console
    variables: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def environment(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def requirements(self) -> Path:
        return self.root / "requirements"

    def ensure(self, wanted: Wish) -> bool:
        """Makes `.venv` hold `wanted`; returns whether anything had to be done."""
        if locks.is_current(self.root, self.environment, wanted):
            return False
        with self._alone():
            if locks.is_current(self.root, self.environment, wanted):  # the one we waited for did it
                return False
            try:
                self._install(wanted)
            except OSError as error:
                raise InstallError(
                    explain(str(error)) or f"{error}. The installer writes to {self.root}."
                ) from error
        return True

    def _install(self, wanted: Wish) -> None:
        if self.environment.is_symlink() or self.environment.is_file():
            raise InstallError(
                f"{self.environment} is not a folder. Remove it, then run the same command again."
            )
        stamp = Stamp.read(self.environment)
        whole = stamp is not None and locks.is_whole(self.environment, stamp) and self._python_works()
        wish = wanted.union(stamp.wish if stamp is not None and whole else None)
        self._reach_private_places()
        cache = disk.uv_cache_folder(self.variables)
        if not whole:
            disk.require_space(
                disk.needed_bytes(wish), {".venv": self.environment, "uv's cache": cache}, self.variables
            )
        locks.remove_stamp(self.environment)

        if not whole:
            self._make_environment()
        settings = self._pip_settings()
        self.variables |= settings.uv_environment(self.variables)
        self._install_uv()
        arguments = settings.uv_arguments()
        if wish.engine:
            arguments += self._fetch_torch(settings)
        self._install_locked(wish, arguments)
        self._install_project()
        if wish.engine:
            cpu_torch.refuse_cuda(self.environment)
        self._forget_wheels()
        version = ".".join(map(str, sys.version_info[:3]))
        Stamp(wish, locks.inputs_of(self.root, wish), version, str(self.environment)).write(self.environment)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = self.root / ".run" / "install.lock"
        try:
            lock.parent.mkdir(exist_ok=True)
            handle = lock.open("w")
        except OSError as error:
            raise InstallError(explain(str(error)) or f"{lock} cannot be written: {error}") from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.console.line("  another install is running here; waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _python_works(self) -> bool:
        check = "import sys; sys.exit(sys.version_info[:2] != (3, 11))"
        try:
            return (
                subprocess.run([self.python, "-c", check], check=False, capture_output=True).returncode == 0
            )
        except OSError:
            return False

    def _reach_private_places(self) -> None:
        """A cache for uv in the checkout where the home folder cannot be written (a service account, `nobody`)."""
        cache = disk.existing_parent(disk.uv_cache_folder(self.variables))
        if not os.access(cache, os.W_OK):
            self.variables["UV_CACHE_DIR"] = str(self.root / ".run" / "uv-cache")

    def _make_environment(self) -> None:
        if self.environment.exists():
            with self.console.step("an unfinished environment, removed"):
                shutil.rmtree(self.environment)
        with self._measured("virtual environment") as step:
            run([sys.executable, "-m", "venv", self.environment], step, self.variables, cwd=self.root)
            step.note = f"Python {'.'.join(map(str, sys.version_info[:3]))}"

    def _pip_settings(self) -> PipSettings:
        listing = run(
            [self.python, "-m", "pip", "config", "list"], Step("pip"), self.variables, cwd=self.root
        )
        return PipSettings.parse(listing)

    def _install_uv(self) -> None:
        with self._measured("uv") as step:
            lock = self.requirements / "uv.lock"
            command: list[str | Path] = [
                self.python,
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--no-input",
                "--no-deps",
            ]
            command += ["--require-hashes", "--only-binary", ":all:", "--requirement", lock]
            run(command, step, self.variables, cwd=self.root)

    def _fetch_torch(self, settings: PipSettings) -> list[str]:
        """The uv arguments that lead to torch's CPU wheel, fetched first where no folder here has it."""
        version, block = cpu_torch.pinned_block((self.requirements / "engine.lock").read_text())
        if cpu_torch.folder_with_wheel(settings.local_folders(), version) is not None:
            return []  # the folder is among the arguments already
        with self.console.step(f"torch {version}, download") as step:
            wheels = self.root / ".run" / "wheels"
            if cpu_torch.folder_with_wheel([wheels], version) is None:
                wheels.mkdir(parents=True, exist_ok=True)
                pin = wheels / "torch.txt"
                pin.write_text(block)
                command: list[str | Path] = [
                    self.python,
                    "-m",
                    "pip",
                    "download",
                    "--disable-pip-version-check",
                    "--no-input",
                ]
                command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", pin]
                command += ["--extra-index-url", cpu_torch.index_address(self.root), "--dest", wheels]
                run(command, step, self.variables, cwd=self.root)
            step.megabytes = disk.size_bytes(wheels) / disk.MB
        return ["--find-links", str(wheels)]

    def _install_locked(self, wish: Wish, arguments: list[str]) -> None:
        with self._measured(f"packages of {' and '.join(wish.lock_names)}") as step:
            command: list[str | Path] = [
                self.environment / "bin" / "uv",
                "pip",
                "sync",
                "--python",
                self.python,
                "--require-hashes",
            ]
            command += [
                "--no-build",
                "--no-progress",
                *arguments,
                *(self.requirements / name for name in wish.lock_names),
            ]
            said = run(command, step, self.variables, cwd=self.root)
            step.note = next(
                (line for line in reversed(said.splitlines()) if line.startswith("Installed")), ""
            )

    def _install_project(self) -> None:
        with self._measured("dayzero itself") as step:
            command: list[str | Path] = [
                self.environment / "bin" / "uv",
                "pip",
                "install",
                "--python",
                self.python,
                "--offline",
            ]
            command += ["--no-deps", "--no-build-isolation", "--no-progress", "--editable", self.root]
            run(command, step, self.variables, cwd=self.root)
            # From another folder, so that the checkout itself is not what makes it importable.
            run([self.python, "-c", "import dayzero.cli"], step, self.variables, cwd=Path("/"))

    def _forget_wheels(self) -> None:
        """A fetched torch wheel is in uv's cache by now."""
        shutil.rmtree(self.root / ".run" / "wheels", ignore_errors=True)

    @contextmanager
    def _measured(self, name: str) -> Iterator[Step]:
        """A step with the megabytes that `.venv` gained in it."""
        before = disk.size_bytes(self.environment)
        with self.console.step(name) as step:
            yield step
            step.megabytes = max(0.0, (disk.size_bytes(self.environment) - before) / disk.MB)
