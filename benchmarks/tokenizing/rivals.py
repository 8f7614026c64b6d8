"""The tokenizers that are measured, each as it is used best: what it returns is made a buffer outside the clock."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dayzero.frontend.kimi_k3.slices import slices

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.unit.kimi_k3.reference import PATTERN, reference_slices

ROOT = Path(__file__).resolve().parents[2]
BASETENKENIZER = "basetenkenizer==0.2.8"
PEERS = ROOT / ".peers" / "tokenizers"


class Rival(Protocol):
    name: str

    def load(self, vocabulary: Path) -> None: ...

    def encode(self, segments: Sequence[str]) -> Any: ...

    def buffer(self, encoded: Any) -> bytes:
        """What `encode` returned as little-endian uint32."""
        ...


class _OverTiktoken:
    def load(self, vocabulary: Path) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        ranks = load_tiktoken_bpe(str(vocabulary))
        self._encode = tiktoken.Encoding(
            "kimi-k3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
        ).encode_ordinary

    def buffer(self, encoded: Any) -> bytes:
        return b"".join([np.array(part, dtype="<u4").tobytes() for part in encoded])


class Tiktoken(_OverTiktoken):
    """`encode_ordinary`, with the slices cut our quick way."""

    name = "tiktoken"

    def encode(self, segments: Sequence[str]) -> Any:
        return [self._encode(part) for segment in segments for part in slices(segment)]


class Reference(_OverTiktoken):
    """tiktoken and a walk over every character, as the description reads."""

    name = "reference"

    def encode(self, segments: Sequence[str]) -> Any:
        return [self._encode(part) for segment in segments for part in reference_slices(segment)]


class Basetenkenizer:
    """`encode_segments`, which slices as the reference does; ids taken out as an array."""

    name = "basetenkenizer"

    def load(self, vocabulary: Path) -> None:
        from basetenkenizer import Tokenizer, tiktoken_model_to_tokenizer_json

        converted = tiktoken_model_to_tokenizer_json(vocabulary, pattern=PATTERN, special_tokens={})
        self._tokenizer = Tokenizer.from_json_str(converted)

    def encode(self, segments: Sequence[str]) -> Any:
        return self._tokenizer.encode_segments([(segment, False) for segment in segments]).into_numpy()["ids"]

    def buffer(self, encoded: Any) -> bytes:
        return encoded.tobytes()


class Dayzero:
    name = "dayzero"

    def load(self, vocabulary: Path) -> None:
        from dayzero.frontend.kimi_k3.tokenizer import K3Tokenizer
        from dayzero.frontend.kimi_k3.vocabulary import load_vocabulary

        self._tokenizer = K3Tokenizer(load_vocabulary(vocabulary))
        self._tokenizer.warm()

    def encode(self, segments: Sequence[str]) -> Any:
        return b"".join(self._tokenizer.encode(segments, scope="bench"))

    def buffer(self, encoded: Any) -> bytes:
        return encoded


def rivals() -> list[type[Any]]:
    return [Tiktoken, Reference, *([Basetenkenizer] if _basetenkenizer() else []), Dayzero]


def _basetenkenizer() -> bool:
    """Installed into `.peers`, beside other benchmarks' rivals, where it is not there already."""
    sys.path.append(str(PEERS))
    if importlib.util.find_spec("basetenkenizer") is None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        print(f"installing {BASETENKENIZER} into {PEERS}", file=sys.stderr)
        subprocess.run([*command, "--no-deps", "--target", str(PEERS), BASETENKENIZER], check=False)
        importlib.invalidate_caches()
    return importlib.util.find_spec("basetenkenizer") is not None
