"""Which frontend a model has: the one place that knows them all."""

from pathlib import Path

from dayzero.config import Frontend
from dayzero.frontend import chat_template
from dayzero.frontend.protocol import ModelFrontend


def load_frontend(config: Frontend, folder: Path) -> ModelFrontend:
    """Raises FrontendLoadError."""
    match config.kind:
        case "chat_template":
            options = chat_template.ChatTemplateOptions(**config.options)
            return chat_template.load(folder, options)
