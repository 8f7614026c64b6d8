"""Random requests to Kimi K3 that must be answered in a form: tools with random schemas, response formats."""

import random
from dataclasses import dataclass
from typing import Any

NAMES = ("city", "days", "unit", "path", "query", "note", "deep/key", 'a "quoted" & <|close|> key')


@dataclass(frozen=True)
class Asked:
    """A request body, and the schemas that its answer must obey: of its calls by tool, and of its content."""

    body: dict[str, Any]
    parameters: dict[str, dict[str, Any]]
    content: dict[str, Any] | None
    calls: tuple[int, int]
    """At least, at most; -1 is no limit."""

    @property
    def thinks(self) -> bool:
        return "thinking" not in self.body


def scalar(dice: random.Random) -> dict[str, Any]:
    return dice.choice(
        [
            {"type": "string"},
            {"type": "string", "maxLength": 6},
            {"type": "string", "minLength": 3, "maxLength": 5},
            {"type": "string", "enum": ["celsius", "fahrenheit", "<|close|>", ""]},
            {"type": "integer"},
            {"type": "integer", "minimum": -5, "maximum": 40},
            {"type": "number", "minimum": 0},
            {"type": "boolean"},
            {"type": "null"},
            {"const": "always this"},
            {"enum": ["one", 2, None]},
            {"type": ["string", "null"], "maxLength": 4},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ]
    )


def value(dice: random.Random, levels: int = 2) -> dict[str, Any]:
    kind = dice.choice(["scalar", "scalar", "scalar", "array", "object", "named"] if levels else ["scalar"])
    match kind:
        case "array":
            return {
                "type": "array",
                "items": value(dice, levels - 1),
                "minItems": dice.randrange(2),
                "maxItems": 2,
            }
        case "object":
            return record(dice, levels - 1)
        case "named":
            return {"$ref": "#/$defs/point"}
    return scalar(dice)


def record(dice: random.Random, levels: int) -> dict[str, Any]:
    names = dice.sample(NAMES, dice.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: value(dice, levels) for name in names},
        "required": [name for name in names if dice.random() < 0.6],
        "additionalProperties": False,
    }


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
    "required": ["x", "label"],
    "additionalProperties": False,
}


def schema(dice: random.Random) -> dict[str, Any]:
    return record(dice, 2) | {"$defs": {"point": POINT}}


KINDS = ("required", "strict", "json_schema", "named", "one", "json_object", "both")
FORMS = 2 * len(KINDS)
"""Each kind with thinking on and off. A grammar takes half a second to compile, so requests share them."""


def random_request(seed: int) -> Asked:
    """Form `seed % FORMS`, every second round of them streamed."""
    form, stream = seed % FORMS, bool(seed // FORMS % 2)
    dice = random.Random(form)
    kind = KINDS[form % len(KINDS)]
    names = [f"tool_{i}" for i in range(dice.randint(1, 3))]
    parameters = {name: schema(dice) for name in names}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Request {seed}: do something."}],
        "max_completion_tokens": 1200,
        "seed": seed,
        "stream": stream,
    }
    if form >= len(KINDS):
        body["thinking"] = {"type": "disabled"}
    content = None
    calls = (0, 0)
    if kind in ("json_schema", "both"):
        content = schema(dice)
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": content},
        }
    if kind == "json_object":
        content = {"type": "object"}
        body["response_format"] = {"type": "json_object"}
    if kind in ("required", "strict", "named", "one", "both"):
        body["tools"] = [
            {"type": "function", "function": {"name": name, "parameters": own, "strict": kind == "strict"}}
            for name, own in parameters.items()
        ]
        calls = (1, 1) if kind in ("named", "one") else (0 if kind == "strict" else 1, -1)
        body["tool_choice"] = "auto" if kind == "strict" else "required"
        body["parallel_tool_calls"] = kind != "one"
    if kind == "named":
        body["tool_choice"] = {"type": "function", "function": {"name": names[-1]}}
        parameters = {names[-1]: parameters[names[-1]]}
    return Asked(body, parameters, content, calls)
