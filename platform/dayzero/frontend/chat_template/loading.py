"""A model's folder to its frontend: which files are read, and what each gives.

- `tokenizer.json`: the vocabulary. `tokenizer_config.json`: `bos_token` and the like, and a template (one, or a
  list of named ones: `default`, and `tool_use` for requests with tools). `chat_template.jinja` goes before it.
- Stop ids: `eos_token_id` of `generation_config.json`, `eos_token`, and the template's own end of turn.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from dayzero.frontend.chat_template import vocabulary
from dayzero.frontend.chat_template.decoder import ReasoningFormat
from dayzero.frontend.chat_template.frontend import ChatTemplateFrontend
from dayzero.frontend.chat_template.template import ChatTemplate, utc_now
from dayzero.frontend.chat_template.vocabulary import Vocabulary
from dayzero.frontend.errors import FrontendLoadError

REASONING_MARKERS: Mapping[str, tuple[str, str]] = {"think": ("<think>", "</think>")}


@dataclass(frozen=True, slots=True)
class ChatTemplateOptions:
    """`reasoning`: the model's format of reasoning, if it has one. `template`: Jinja in place of the folder's own.

    `clock` is what a template's `strftime_now` reads: prompts of such a template differ from day to day.
    """

    reasoning: Literal["none", "think"] = "none"
    template: str | None = None
    clock: Callable[[], datetime] = utc_now


def load(folder: Path, options: ChatTemplateOptions | None = None) -> ChatTemplateFrontend:
    """Reads the folder's files once. Raises FrontendLoadError: what is missing or not understood."""
    options = options or ChatTemplateOptions()
    words = vocabulary.read(folder / "tokenizer.json")
    config = _json(folder / "tokenizer_config.json")
    sources = _template_sources(folder, config, options)
    templates = {name: ChatTemplate.compile(source, clock=options.clock) for name, source in sources.items()}
    special_tokens = _special_tokens(config)
    return ChatTemplateFrontend(
        words,
        templates["default"],
        tool_template=templates.get("tool_use"),
        special_tokens=special_tokens,
        eos_ids=_eos_ids(_json(folder / "generation_config.json"), special_tokens.get("eos_token"), words),
        reasoning=_reasoning(options, words),
    )


def _json(path: Path) -> dict[str, Any]:
    """An absent file is an empty one."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise FrontendLoadError(f"cannot read {path.name}: {e}") from e
    if not isinstance(parsed, dict):
        raise FrontendLoadError(f"{path.name} is not a JSON object")
    return parsed


def _template_sources(
    folder: Path, config: Mapping[str, Any], options: ChatTemplateOptions
) -> Mapping[str, str]:
    if options.template is not None:
        return {"default": options.template}
    file = folder / "chat_template.jinja"
    if file.exists():
        return {"default": file.read_text(encoding="utf-8")}
    declared = config.get("chat_template")
    match declared:
        case str():
            return {"default": declared}
        case list():
            named = {entry["name"]: entry["template"] for entry in declared}
            if "default" in named:
                return named
    raise FrontendLoadError(
        f"no chat template in {folder.name}: give it a chat_template.jinja, or name one in the fleet file"
    )


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and so on, written as a string or as an object with its content."""
    found: dict[str, str] = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            found[key] = content
    return found


def _eos_ids(generation: Mapping[str, Any], eos_token: str | None, words: Vocabulary) -> list[int]:
    declared = generation.get("eos_token_id")
    ids = declared if isinstance(declared, list) else [declared]
    named = [control.id for control in words.controls if control.content == eos_token]
    return [i for i in [*ids, *named] if isinstance(i, int)]


def _reasoning(options: ChatTemplateOptions, words: Vocabulary) -> ReasoningFormat | None:
    if options.reasoning == "none":
        return None
    opener, closer = REASONING_MARKERS[options.reasoning]
    ids = {control.content: control.id for control in words.controls}
    return ReasoningFormat(opener, closer, ids.get(opener), ids.get(closer))
