"""A random JSON value that a schema allows: what a simulated engine says under a grammar. Pure: the dice are given.

- A value is valid or there is none: a keyword that cannot be honoured is an UnsupportedFeatureError that names it, and
  so is a schema for which no value is found.
- Bounded: recursion ends where the schema lets it, sizes stay small, and a choice is tried a few times at most.
- No pattern is run; `random_text` writes what a pattern matches.
"""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from dayzero.engine.errors import UnsupportedFeatureError
from dayzero.engine.random_text import text_of_format, text_of_length, text_of_pattern
from dayzero.engine.schema_rules import TYPES, fits, merged, unsupported

_LAVISH_LEVELS: Final = 3
"""Down to here an instance has optional parts."""
_MAX_LEVELS: Final = 24
_MAX_VALUES: Final = 4096
"""Made for one instance, those that did not fit included."""
_TRIES: Final = 16
_MORE: Final = 3
"""How much more than the least there is of something."""
_WIDE: Final = 100
_ENDLESS: Final = 1_000_000

Schema = Any
"""A JSON schema as parsed: an object or a boolean."""


class _NoValue(Exception):  # noqa: N818 - of this module alone: another branch may have one
    """Nothing was found for this schema."""


class _Spent(Exception):  # noqa: N818 - of this module alone
    """`_MAX_VALUES` were made."""


def random_json(schema: Schema, dice: random.Random, *, field: str = "response_format") -> Any:
    """A value that `schema` allows. Raises UnsupportedFeatureError naming `field` and the keyword."""
    try:
        return _Maker(schema, dice, field).value(schema, 0)
    except (_NoValue, _Spent):
        raise UnsupportedFeatureError.of(
            field, "the simulated engine finds no value for this schema: simplify it"
        ) from None


class _Maker:
    def __init__(self, root: Schema, dice: random.Random, field: str) -> None:
        self._root = root
        self._dice = dice
        self._field = field
        self._made = 0

    def value(self, schema: Schema, level: int) -> Any:
        self._made += 1
        if self._made > _MAX_VALUES:
            raise _Spent
        if level > _MAX_LEVELS or schema is False:
            raise _NoValue
        if not isinstance(schema, Mapping):
            return self._anything()
        flat = merged(schema, self._root)
        if flat is None:
            raise _NoValue
        keyword = unsupported(flat)
        if keyword is not None:
            raise UnsupportedFeatureError.of(
                self._field, f"the simulated engine cannot honour `{keyword}` in a schema: leave it out"
            )
        for branches in ("anyOf", "oneOf"):
            if branches in flat:
                return self._branch(flat, branches, level)
        return self._tried(flat, level)

    def _branch(self, flat: Mapping[str, Any], key: str, level: int) -> Any:
        """By way of one branch; where it is deep already, of one that ends there if any does."""
        rest = {name: part for name, part in flat.items() if name != key}
        branches = list(flat[key])
        self._dice.shuffle(branches)
        if level >= _LAVISH_LEVELS:
            branches.sort(key=self._goes_on)
        for branch in branches * 2:
            both = merged({"allOf": [rest, branch]}, self._root)
            if both is None:
                continue
            try:
                value = self.value(both, level + 1)
            except _NoValue:
                continue
            if fits(value, flat, self._root):
                return value
        raise _NoValue

    def _goes_on(self, schema: Schema) -> bool:
        flat = merged(schema, self._root) or {}
        kinds = flat.get("type", ())
        inner = {kinds} if isinstance(kinds, str) else set(kinds)
        return not {"enum", "const"} & set(flat) and (not inner or bool(inner & {"array", "object"}))

    def _tried(self, flat: Mapping[str, Any], level: int) -> Any:
        for _ in range(_TRIES):
            value = self._once(flat, level)
            if fits(value, flat, self._root):
                return value
        raise _NoValue

    def _once(self, flat: Mapping[str, Any], level: int) -> Any:
        if "const" in flat:
            return flat["const"]
        if "enum" in flat:
            allowed = [value for value in flat["enum"] if fits(value, flat, self._root)]
            if not allowed:
                raise _NoValue
            return self._dice.choice(allowed)
        makers: dict[str, Callable[[], Any]] = {
            "string": lambda: self._string(flat),
            "integer": lambda: self._integer(flat),
            "number": lambda: self._number(flat),
            "boolean": lambda: self._dice.random() < 0.5,
            "null": lambda: None,
            "array": lambda: self._array(flat, level),
            "object": lambda: self._object(flat, level),
        }
        return makers[self._type(flat)]()

    def _type(self, flat: Mapping[str, Any]) -> str:
        declared = flat.get("type")
        if isinstance(declared, str):
            return declared
        if declared is not None:
            return str(self._dice.choice(list(declared)))
        return next((kind for kind, keys in TYPES.items() if keys & set(flat)), "string")

    def _anything(self) -> Any:
        return self._dice.choice([text_of_length(self._dice, 0, 12), self._dice.randint(-99, 99), True, None])

    def _string(self, flat: Mapping[str, Any]) -> str:
        least = int(flat.get("minLength", 0))
        most = int(flat.get("maxLength", least + 20))
        if least > most:
            raise _NoValue
        if "pattern" in flat:
            text = text_of_pattern(flat["pattern"], self._dice, self._field)
        elif "format" in flat:
            text = text_of_format(flat["format"], self._dice, self._field)
        else:
            text = text_of_length(self._dice, least, min(most, least + 20))
        return text

    def _bounds(self, flat: Mapping[str, Any]) -> tuple[float, float]:
        low, high = flat.get("minimum", -math.inf), flat.get("maximum", math.inf)
        for key, sign in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
            edge = flat.get(key)
            if edge is None or isinstance(edge, bool):
                continue
            if sign > 0:
                low = max(low, edge)
            else:
                high = min(high, edge)
        if math.isinf(low) and math.isinf(high):
            return -_WIDE, _WIDE
        if math.isinf(low):
            return high - _WIDE, high
        return low, (low + _WIDE if math.isinf(high) else high)

    def _integer(self, flat: Mapping[str, Any]) -> int:
        low, high = self._bounds(flat)
        step = flat.get("multipleOf", 1)
        step = step if isinstance(step, int) and step > 0 else 1
        first, last = math.ceil(low / step), math.floor(high / step)
        if first > last:  # wider than the default where a bound left no room
            first, last = math.ceil(low / step), math.ceil(low / step)
        return step * self._dice.randint(first, last)

    def _number(self, flat: Mapping[str, Any]) -> float:
        low, high = self._bounds(flat)
        step = flat.get("multipleOf")
        if step:
            first, last = math.ceil(low / step), math.floor(high / step)
            return float(step * self._dice.randint(first, max(first, last)))
        value = self._dice.uniform(low, high)
        rounded = round(value, 3)
        return rounded if low < rounded < high else value

    def _array(self, flat: Mapping[str, Any], level: int) -> list[Any]:
        least = int(flat.get("minItems", 0))
        most = int(flat.get("maxItems", least + _MORE))
        if least > most:
            raise _NoValue
        count = least if level >= _LAVISH_LEVELS else self._dice.randint(least, min(most, least + _MORE))
        head = flat.get("prefixItems", flat["items"] if isinstance(flat.get("items"), list) else [])
        rest = flat.get("items", True) if "prefixItems" in flat else flat.get("additionalItems", True)
        if not head:
            rest = flat.get("items", True)
        made: list[Any] = []
        for i in range(count):
            try:
                made.append(self._next_item(head[i] if i < len(head) else rest, made, flat, level))
            except _NoValue:
                if i < least:
                    raise
                break
        return made

    def _next_item(self, schema: Schema, before: list[Any], flat: Mapping[str, Any], level: int) -> Any:
        for _ in range(_TRIES * 4):
            item = self.value(schema, level + 1)
            if not flat.get("uniqueItems") or all(repr(item) != repr(other) for other in before):
                return item
        raise _NoValue

    def _object(self, flat: Mapping[str, Any], level: int) -> dict[str, Any]:
        declared = flat.get("properties", {})
        required = list(dict.fromkeys(flat.get("required", ())))
        others = flat.get("additionalProperties", True)
        least = max(int(flat.get("minProperties", 0)), len(required))
        most = int(flat.get("maxProperties", _ENDLESS))
        if least > most or any(key not in declared and others is False for key in required):
            raise _NoValue
        chosen = set(required)
        optional = [key for key in declared if key not in chosen and declared[key] is not False]
        self._dice.shuffle(optional)
        for key in optional:
            wanted = len(chosen) < least or (level < _LAVISH_LEVELS and self._dice.random() < 0.5)
            if wanted and len(chosen) < most:
                chosen.add(key)
        made: dict[str, Any] = {}
        for key in [*(key for key in declared if key in chosen), *(k for k in required if k not in declared)]:
            try:
                made[key] = self.value(declared.get(key, others), level + 1)
            except _NoValue:
                if key in required:
                    raise
        return self._filled(made, least, others, level)

    def _filled(self, made: dict[str, Any], least: int, others: Schema, level: int) -> dict[str, Any]:
        """With as many members as there must be."""
        number = 0
        while len(made) < least:
            if others is False:
                raise _NoValue
            number += 1
            made.setdefault(f"key_{number}", self.value(others, level + 1))
        return made
