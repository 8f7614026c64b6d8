"""Contracts: what an API promises for one kind of model (KIMI_K3 section 5), chosen by the model's frontend."""

from dayzero.api.contracts.contract import Contract
from dayzero.api.contracts.moonshot import MOONSHOT
from dayzero.api.contracts.openai import OPENAI

_CONTRACTS: dict[str, Contract] = {"chat_template": OPENAI, "kimi_k3": MOONSHOT}


def contract_of(frontend_kind: str) -> Contract:
    """By the frontend's kind in the fleet file. Raises KeyError for one that does not exist."""
    return _CONTRACTS[frontend_kind]


__all__ = ["MOONSHOT", "OPENAI", "Contract", "contract_of"]
