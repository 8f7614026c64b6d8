"""Which vocabulary file a process uses. There is no other place than these four.

- In this order: the option, DAYZERO_K3_VOCABULARY, `tiktoken.model` in the model's folder, the small one shipped here.
- A file that was named and is not there is an error, never a reason to take the next.
- The shipped one has Kimi K3's form, not its ids: enough for a simulated engine, wrong for the model. Hence a warning.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dayzero.frontend.errors import FrontendLoadError

VARIABLE = "DAYZERO_K3_VOCABULARY"
FILE_NAME = "tiktoken.model"
SHIPPED = Path(__file__).with_name("small_vocabulary.tiktoken")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VocabularySource:
    path: Path
    origin: Literal["option", "environment", "model folder", "shipped"]


def find_vocabulary(
    option: Path | None, model_folder: Path | None, environ: Mapping[str, str]
) -> VocabularySource:
    """Raises FrontendLoadError when the file that was named does not exist. Warns of the shipped one."""
    source = look_up(option, model_folder, environ)
    if source.origin == "shipped":
        _log.warning(
            "using the small vocabulary that ships: its ids are not Kimi K3's; --vocabulary or %s names the model's %s",
            VARIABLE,
            FILE_NAME,
        )
    return source


def look_up(option: Path | None, model_folder: Path | None, environ: Mapping[str, str]) -> VocabularySource:
    """The same, in silence: for who only wants to know which one it is."""
    if option is not None:
        return VocabularySource(_named(option, "--vocabulary"), "option")
    if variable := environ.get(VARIABLE):
        return VocabularySource(_named(Path(variable), VARIABLE), "environment")
    if model_folder is not None and (in_folder := model_folder / FILE_NAME).is_file():
        return VocabularySource(in_folder, "model folder")
    return VocabularySource(SHIPPED, "shipped")


def _named(path: Path, name: str) -> Path:
    if not path.is_file():
        raise FrontendLoadError(f"{name} names {path}, which is no file; name the model's {FILE_NAME}")
    return path
