"""The arguments of a call as nodes of a structural tag: vLLM's own tag of each argument, with these differences.

- A string is bounded by its `minLength` and `maxLength`, in characters, whatever they are; any `enum` is kept.
- A property of several types, or behind a `$ref`, has a tag for each type; vLLM leaves its key and its value free.
- There are as many arguments as the schema requires, at least, and as it declares, at most, in any order.
  What the tag does not enforce: that the required ones are among them, and each once.
- With `text_characters` each comes once, in the schema's order, and the required ones do come.
- Arguments without a schema have any key and any type, and a value of that type.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dayzero.frontend.kimi_k3.schemas import resolve
from dayzero.serving.engines.vllm_kimi_k3_formats import (
    Exact,
    Format,
    either,
    literal,
    optional,
    repeat,
    sequence,
)
from dayzero.serving.engines.vllm_kimi_k3_schemas import json_format

Schema = Mapping[str, Any]

_TYPES = ("string", "number", "boolean", "null", "object", "array")
_DEFINITIONS = ("$defs", "definitions")
_KEPT = ("#/$defs/", "#/definitions/")
_ROOT = "the whole of the tool's schema"
_ROOT_REFERENCE = f"#/$defs/{_ROOT}"
_ANY_KEY = r'(?:[^"&]|&amp;|&quot;){1,64}'
_SHORT_KEY = "[a-z]{1,8}"
_WANTED_BY = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
_ALTERNATIVES = 32
"""Of one argument: with more its value is bounded by its type alone."""


def arguments(parameters: Schema | None, exact: Exact) -> list[Format]:
    """`parameters`: the tool's schema; None for any arguments."""
    properties = {} if parameters is None else _properties(parameters)
    closed = parameters is not None and parameters.get("additionalProperties") is False
    if not properties:
        if closed:
            return []
        most = -1 if exact.text_characters is None else 1
        return [repeat(_argument(None, {}, {}, exact), 0, most)]
    assert parameters is not None
    required = set(parameters.get("required", ()))
    tags = {key: _argument(key, schema, parameters, exact) for key, schema in properties.items()}
    if exact.text_characters is not None:
        return [tag if key in required else optional(tag) for key, tag in tags.items()]
    return [repeat(either(*tags.values()), len(required), len(tags))]


def _properties(parameters: Schema) -> dict[str, Any]:
    """Those that may come, the required ones that are not declared included."""
    declared = {
        key: schema for key, schema in parameters.get("properties", {}).items() if schema is not False
    }
    others = parameters.get("additionalProperties", True)
    return declared | {key: others for key in parameters.get("required", ()) if key not in declared}


def _argument(key: str | None, schema: Any, root: Schema, exact: Exact) -> Format:
    """`key` None: any."""
    different = {json.dumps(typed, sort_keys=True): typed for typed in _by_type(schema, root)}
    typed = list(different.values())
    if not typed:  # a reference in a circle says nothing
        typed = [{"type": kind} for kind in _TYPES]
    if len(typed) > _ALTERNATIVES:
        typed = [{"type": kind} for kind in dict.fromkeys(one["type"] for one in typed)]
    return either(*(_typed_argument(key, one, root, exact) for one in typed))


def _typed_argument(key: str | None, schema: dict[str, Any], root: Schema, exact: Exact) -> Format:
    """From vLLM's tag of an argument called K; the client's key takes that place as text."""
    tag = _vllm_tag(schema, root)
    before, after = tag["begin"].split('"K"', 1)
    return sequence(
        *exact.marked(before),
        literal('"'),
        _key(key, exact),
        literal('"'),
        *exact.marked(after),
        _string(schema, exact)
        if schema["type"] == "string"
        else json_format(tag["content"]["json_schema"], exact),
        *exact.marked(tag["end"]),
    )


def _key(key: str | None, exact: Exact) -> Format:
    if key is not None:
        return literal(key.replace("&", "&amp;").replace('"', "&quot;"))
    return {"type": "regex", "pattern": _ANY_KEY if exact.text_characters is None else _SHORT_KEY}


def _string(schema: Schema, exact: Exact) -> Format:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        texts = [literal(value) for value in values if value]
        if not texts:
            return exact.text(0, 0)
        return optional(either(*texts)) if "" in values else either(*texts)
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    return exact.text(least, None if most is None else max(least, int(most)))


def _vllm_tag(schema: dict[str, Any], root: Schema) -> Format:
    from vllm.tool_parsers.structural_tag_registry import get_kimi_k3_structural_tag  # noqa: PLC0415
    from xgrammar.openai_tool_call_schema import FunctionToolParam  # noqa: PLC0415

    parameters = {"properties": {"K": _moved(schema)}} | {
        key: _moved(named) for key, named in _definitions(schema, root).items()
    }
    if _ROOT_REFERENCE in str(parameters):
        whole = _moved({key: part for key, part in root.items() if key not in _DEFINITIONS})
        parameters["$defs"] = parameters.get("$defs", {}) | {_ROOT: whole}
    function = FunctionToolParam.model_validate({"function": {"name": "t", "parameters": parameters}})
    tag = get_kimi_k3_structural_tag([function], [], "required", reasoning=False).model_dump()
    call = tag["format"]["elements"][-2]["content"]["tags"][0]
    inner: Format = call["content"]["elements"][-1]["content"]
    return inner


def _definitions(schema: Any, root: Schema) -> dict[str, dict[str, Any]]:
    """Those of the root's that the schema needs; all of them where it points to another place of the root."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = list(_references(schema))
    while waiting:
        reference = waiting.pop()
        kept, _, name = reference.removeprefix("#/").partition("/")
        if kept not in _DEFINITIONS or "/" in name or "~" in name or "%" in name:
            return {key: root[key] for key in _DEFINITIONS if key in root}
        if name not in needed.setdefault(kept, {}) and name in root.get(kept, {}):
            needed[kept][name] = root[kept][name]
            waiting += _references(root[kept][name])
    return needed


def _references(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _moved(part: Any) -> Any:
    """With references into the tool's schema pointing to where that is kept: a property is compiled on its own."""
    if isinstance(part, list):
        return [_moved(child) for child in part]
    if not isinstance(part, Mapping):
        return part
    moved = {key: _moved(child) for key, child in part.items()}
    reference = part.get("$ref")
    if isinstance(reference, str) and not reference.startswith(_KEPT):
        moved["$ref"] = _ROOT_REFERENCE + reference.removeprefix("#")
    return moved


def _by_type(schema: Any, root: Schema) -> Iterator[dict[str, Any]]:
    """The schema as one schema a type, each with `type` a string. Each part of it is looked at once, however often named."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, Mapping):
            yield from ({"type": kind} for kind in _TYPES)
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        if "$ref" in part:
            waiting.append(resolve(part["$ref"], root))
        elif (branches := part.get("anyOf") or part.get("oneOf")) and "type" not in part:
            waiting += branches
        elif len(part.get("allOf", ())) == 1 and "type" not in part:
            waiting.append(part["allOf"][0])
        else:
            yield from _split(part)


def _split(schema: Schema) -> Iterator[dict[str, Any]]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    kinds = schema.get("type")
    if kinds is None:
        kinds = _TYPES if values is None else list(dict.fromkeys(_type_of(value) for value in values))
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        typed = {key: value for key, value in schema.items() if key not in ("enum", "const")} | {"type": kind}
        if values is not None:
            typed["enum"] = [value for value in values if _is(value, kind)]
            if not typed["enum"]:
                continue
        yield typed


def _type_of(value: Any) -> str:
    return _WANTED_BY.get(type(value), "null")


def _is(value: Any, kind: str) -> bool:
    kinds = {_type_of(value)}
    if "integer" in kinds:
        kinds.add("number")
    if isinstance(value, float) and value.is_integer():
        kinds.add("integer")
    return kind in kinds
