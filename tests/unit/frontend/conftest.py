"""Folders of small models."""

from datetime import UTC, datetime

import pytest

from dayzero.frontend.chat_template import ChatTemplateFrontend, ChatTemplateOptions, load
from tests.unit.frontend.models import FAMILIES

NOON = datetime(2026, 7, 27, 12, tzinfo=UTC)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {model.name: model.write(root / model.name) for model in FAMILIES}


@pytest.fixture(scope="session")
def frontends(folders) -> dict[str, ChatTemplateFrontend]:
    return {
        name: load(
            folder, ChatTemplateOptions(reasoning="think" if name == "qwen" else "none", clock=lambda: NOON)
        )
        for name, folder in folders.items()
    }
