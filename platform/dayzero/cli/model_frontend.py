"""The frontend of a model that a command names: the very one that a gateway has, without a fleet that runs."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dayzero.api.contracts import MOONSHOT, OPENAI, Contract
from dayzero.cli.errors import UsageError
from dayzero.frontend import chat_template, kimi_k3
from dayzero.frontend.protocol import ModelFrontend
from dayzero.serving.local.folders import FleetFolder

KIMI_K3 = ("kimi-k3", "kimi-k3[1m]")
SMOLLM2 = ("smollm2-135m-instruct", "smollm2")


@dataclass(frozen=True, slots=True)
class NamedFrontend:
    """`vocabulary`: where its ids come from, for a reader who compares two answers."""

    model: str
    frontend: ModelFrontend
    contract: Contract
    vocabulary: dict[str, Any]

    @property
    def vocabulary_tokens(self) -> int:
        return int(self.vocabulary["size"])


def named_frontend(model: str, vocabulary: Path | None) -> NamedFrontend:
    """Raises UsageError for a name or a combination that does not exist, FrontendLoadError, WeightsError."""
    if model in KIMI_K3:
        frontend = kimi_k3.load(vocabulary=vocabulary)
        used = frontend.vocabulary
        return NamedFrontend(
            KIMI_K3[0],
            frontend,
            MOONSHOT,
            {"source": used.source, "sha256": used.digest, "size": used.size},
        )
    if model not in SMOLLM2:
        known = ", ".join((KIMI_K3[0], SMOLLM2[0]))
        raise UsageError(f"--model {model}: no such model here; use one of {known}.")
    if vocabulary is not None:
        raise UsageError(f"--vocabulary is for {KIMI_K3[0]}; {model} has its tokenizer with it.")
    from dayzero.serving.weights import ensure_tokenizer  # noqa: PLC0415 a second to import, for this model only

    run = FleetFolder.default()
    run.make()
    folder = ensure_tokenizer(run.models / "smollm2")
    tokenizer = folder / "tokenizer.json"
    template = chat_template.load(folder)
    return NamedFrontend(
        SMOLLM2[0],
        template,
        OPENAI,
        {
            "source": str(tokenizer),
            "sha256": hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
            "size": template.vocabulary.size,
        },
    )
