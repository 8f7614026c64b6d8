"""What regions need for Kimi K3, looked at before anything starts: the vocabulary, and the scripts of simulated replicas.

- A fault names who named the file: the command's option, the variable, or the fleet file with its line.
"""

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dayzero.config import Fleet, KimiK3Options, Model, Pool, fault_at
from dayzero.errors import DayzeroError
from dayzero.serving.local import model_files
from dayzero.serving.local.errors import PreflightError

VARIABLE = "DAYZERO_K3_VOCABULARY"
FILE_NAME = "tiktoken.model"
"""Both as `vocabulary_source` has them, whose import takes a while that most commands need not wait."""
SHIPPED = "the small one that ships, not Kimi K3's own"
_DIGEST_CHARACTERS = 12


def named_vocabulary(
    option: Path | None, fleet: Fleet, variables: Mapping[str, str] = os.environ
) -> Path | None:
    """What a person named, else what the variable names: absolute, since processes stand elsewhere.

    Raises PreflightError for an option that the fleet has no use for, and for a file that is not there.
    """
    if not fleet.speaks_k3:
        if option is not None:
            raise PreflightError(
                "--vocabulary is Kimi K3's, and no model of this fleet has the frontend kimi_k3."
            )
        return None
    named = option or (Path(variables[VARIABLE]) if variables.get(VARIABLE) else None)
    if named is None:
        return None
    path = Path(os.path.normpath(named.expanduser().absolute()))
    if not path.is_file():
        raise PreflightError(f"{'--vocabulary' if option else VARIABLE} names {_no_file(path)}")
    return path


def vocabulary(
    fleet: Fleet, region: str, models: Path, *, fleet_file: str, given: bool = False
) -> str | None:
    """Which one a region of this fleet will use, in words; None where it needs none. Raises PreflightError.

    `given`: it was named beside the fleet file, by this command or the one that started the region.
    """
    folders = model_files.folders(fleet, region, models)
    said = []
    for model in _models(fleet, region):
        named = _option(model)
        try:
            if named is not None and not named.is_file():
                what = f"{region} was told to take the vocabulary" if given else "names"
                raise PreflightError(f"{what} {_no_file(named)}")
            said.append(_words(named, folders[model.name]))
        except DayzeroError as error:
            if named is None or given:
                raise PreflightError(error.message) from error
            at = ("serving", "models", fleet.serving.models.index(model), "frontend", "options", "vocabulary")
            raise PreflightError(fault_at(fleet_file, at, error.message)) from error
    return ", ".join(dict.fromkeys(said)) or None


def check_scripts(fleet: Fleet, region: str, *, fleet_file: str) -> None:
    """Raises PreflightError with every fault of a script, each with its line."""
    for pool, path in _scripts(fleet, region):
        from dayzero.engine.scripted import script  # noqa: PLC0415 few fleets name one

        if not path.is_file():
            at = ("serving", "pools", fleet.serving.pools.index(pool), "sim", "script")
            raise PreflightError(fault_at(fleet_file, at, f"names {path}, which is no file"))
        try:
            script.load(path)
        except DayzeroError as error:
            raise PreflightError(error.message) from error


def contents(fleet: Fleet, region: str, models: Path) -> dict[str, str]:
    """What is in the files that the fleet only names, as digests, by words for each; "" where one is not there."""
    folders = model_files.folders(fleet, region, models)
    found = {f"the script {path}": _digest(path) for _, path in _scripts(fleet, region)}
    for model in _models(fleet, region):
        folder = folders[model.name]
        path = _option(model) or (folder / FILE_NAME if folder is not None else None)
        if path is not None:
            found[f"the vocabulary {path}"] = _digest(path)
    return found


def _models(fleet: Fleet, region: str) -> list[Model]:
    """Those with a vocabulary, each once."""
    models = {pool.model: fleet.model_of(pool) for pool in fleet.pools(region)}
    return [model for model in models.values() if model.frontend.kind == "kimi_k3"]


def _scripts(fleet: Fleet, region: str) -> list[tuple[Pool, Path]]:
    pools = fleet.pools(region)
    return [(pool, Path(pool.sim.script)) for pool in pools if pool.engine == "sim" and pool.sim.script]


def _option(model: Model) -> Path | None:
    named = KimiK3Options.model_validate(model.frontend.options).vocabulary
    return Path(named) if named else None


def _no_file(path: Path) -> str:
    return f"{path}, which is no file; name the model's {FILE_NAME}"


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


@cache
def _words(named: Path | None, folder: Path | None) -> str:
    path = named or (folder / FILE_NAME if folder is not None else None)
    if path is None or not path.is_file():
        return SHIPPED
    from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary  # noqa: PLC0415 see VARIABLE

    found = load_vocabulary(path)
    return f"{found.digest[:_DIGEST_CHARACTERS]} ({found.path})"
