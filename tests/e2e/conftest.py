"""What the end-to-end tests share: figures that are shown at the end of a run, and regions."""

import contextlib
from collections.abc import Callable

import pytest

from tests.e2e.otlp_sink import Sink
from tests.e2e.regions import Region, regions

_FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config):
    config.stash[_FIGURES] = []


@pytest.fixture
def figure(request) -> Callable[[str], None]:
    """`figure("what was measured: 12 ms")` stands in the summary, whether the test passed or not."""
    return lambda text: request.config.stash[_FIGURES].append(f"{request.node.name}: {text}")


@pytest.fixture(scope="session")
def sink():
    """Where the regions' spans go."""
    with Sink() as sink:
        yield sink


@pytest.fixture(scope="session")
def running(sink):
    """Regions on an engine, started when they are asked for and ended when others are: never two fleets at once."""
    with contextlib.ExitStack() as stack:
        current: dict[tuple[str, ...], dict[str, Region]] = {}

        def of(engine: str, *names: str) -> dict[str, Region]:
            wished = (engine, *names)
            if wished not in current:
                current.clear()
                stack.close()
                variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}
                current[wished] = stack.enter_context(regions(engine, *names, variables=variables))
            return current[wished]

        yield of


@pytest.fixture
def real(running) -> Region:
    return running("vllm", "us-east")["us-east"]


@pytest.fixture
def simulated(running) -> Region:
    return running("sim", "us-east")["us-east"]


@pytest.fixture
def both_real(running) -> dict[str, Region]:
    """us-east with two replicas, eu-west with one."""
    return running("vllm")


def pytest_terminal_summary(terminalreporter, config):
    if figures := config.stash[_FIGURES]:
        terminalreporter.section("end-to-end figures")
        for line in figures:
            terminalreporter.line(line)
