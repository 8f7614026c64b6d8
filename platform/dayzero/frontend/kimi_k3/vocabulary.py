"""A vocabulary of Kimi K3's form: a file of base64 token and rank lines, and the 256 specials behind them.

- Ids are the ranks 0 to R-1, then the specials (`specials.py`); the file knows nothing of those.
- Every single byte is a token, so every text has ids.
- A file that is not of this form, or is Kimi K3's with something amiss, is refused when it is loaded, with what to do.
- Detokenizing is byte-exact; a special has no visible bytes, and its name where tokens are spelled out.
"""

import hashlib
import logging
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dayzero.frontend.detokenizer import TokenTable
from dayzero.frontend.errors import FrontendLoadError
from dayzero.frontend.kimi_k3.specials import SPECIALS, Specials

K3_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"
HEAD_BYTES = 4_096
K3_HEAD_SHA256 = "3a9de09ed34a53558792e66eef8d3613712c38b01edfe0881ad7af69644c44d3"
MAX_FILE_BYTES = 64 * 1024 * 1024
_REMEDY = "fetch the model's tiktoken.model again, or name another with --vocabulary or DAYZERO_K3_VOCABULARY"
_BYTES = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`ranks`: a token's bytes to its id. `digest`: SHA-256 of the file, hex. `source`: where it came from, in words."""

    path: Path
    ranks: Mapping[bytes, int] = field(repr=False)
    specials: Specials
    digest: str
    table: TokenTable = field(repr=False)
    source: str

    @property
    def size(self) -> int:
        """Ids, specials included."""
        return self.specials.size


def load_vocabulary(path: Path, *, origin: str = "") -> Vocabulary:
    """Raises FrontendLoadError. `origin`: who named the file, for `source`."""
    content = _read(path)
    digest = hashlib.sha256(content).hexdigest()
    if digest != K3_SHA256:
        if hashlib.sha256(content[:HEAD_BYTES]).hexdigest() == K3_HEAD_SHA256:
            raise FrontendLoadError(
                f"{path} begins as Kimi K3's vocabulary but is not it: it was cut off or changed; {_REMEDY}"
            )
        if origin != "shipped":
            _log.warning(
                "%s is not Kimi K3's vocabulary (sha256 %s): its ids are for another model", path, digest
            )
    tokens = _tokens(content, path)
    specials = Specials(len(tokens))
    return Vocabulary(
        path=path,
        ranks={token: rank for rank, token in enumerate(tokens)},
        specials=specials,
        digest=digest,
        table=_table(tokens, specials),
        source=f"{origin}: {path}" if origin else str(path),
    )


def _read(path: Path) -> bytes:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise FrontendLoadError(f"the vocabulary {path} has {size_bytes} bytes; {_REMEDY}")
        return path.read_bytes()
    except OSError as e:
        raise FrontendLoadError(f"cannot read the vocabulary {path} ({e.strerror}); {_REMEDY}") from e


def _tokens(content: bytes, path: Path) -> list[bytes]:
    """By rank."""
    by_rank: dict[int, bytes] = {}
    lines = [line for line in content.splitlines() if line]
    for number, line in enumerate(lines, start=1):
        try:
            encoded, rank = line.split()
            by_rank[int(rank)] = a2b_base64(encoded, strict_mode=True)
        except ValueError:
            raise FrontendLoadError(
                f"line {number} of the vocabulary {path} is not `BASE64 RANK`: "
                f"the file is cut off or of another kind; {_REMEDY}"
            ) from None
    tokens = [by_rank[rank] for rank in range(len(lines)) if rank in by_rank]
    if len(tokens) != len(lines) or len(set(tokens)) != len(tokens):
        raise FrontendLoadError(
            f"the vocabulary {path} must have each rank from 0 on once, and each token once; {_REMEDY}"
        )
    missing = _BYTES - sum(len(token) == 1 for token in tokens)
    if missing:
        raise FrontendLoadError(
            f"the vocabulary {path} lacks {missing} of the 256 single bytes, so some texts have no ids: "
            f"the file is cut off or of another kind; {_REMEDY}"
        )
    return tokens


def _table(tokens: list[bytes], specials: Specials) -> TokenTable:
    names = specials.names()
    return TokenTable(
        visible=(*tokens, *[b""] * SPECIALS),
        spelled=(*tokens, *(names[specials.ranks + place].encode() for place in range(SPECIALS))),
    )
