"""Every field of a fleet file does something: one that nothing reads would be a limit silently ignored."""

import re
from pathlib import Path

import pytest

from dayzero.config import infrastructure, policy, serving
from dayzero.config.record import Record

ROOT = Path(__file__).resolve().parents[2]
UNREAD = {("Region", "cloud")}
"""One value so far: the local cloud."""


def fields():
    for module in (infrastructure, policy, serving):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Record) and kind.__module__ == module.__name__:
                for name in kind.model_fields:
                    if (kind.__name__, name) not in UNREAD:
                        yield kind.__name__, name


def readers():
    for root in ("platform", "router", "deployments"):
        for path in (ROOT / root).rglob("*.py"):
            if "config" not in path.parts:
                yield path.read_text()


@pytest.fixture(scope="module")
def source():
    return "\n".join(readers()) + (ROOT / "platform/dayzero/config/fleet.py").read_text()


@pytest.mark.parametrize(("kind", "name"), sorted(set(fields())))
def test_a_field_is_read_outside_the_schema(source, kind, name):
    assert re.search(rf"\.{name}\b", source), f"{kind}.{name} is documented and read by nothing"
