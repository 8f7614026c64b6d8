"""What the end-to-end tests share: figures that are shown at the end of a run, and regions."""

import contextlib
from collections.abc import Callable

import pytest

from tests.e2e.otlp_sink import Sink
from tests.e2e.regions import Region, region

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
def one_region(sink):
    """The region of an engine, started when it is asked for and ended when the next is: never two at once."""
    with contextlib.ExitStack() as running:
        current: dict[str, Region] = {}

        def of(engine: str) -> Region:
            if engine not in current:
                current.clear()
                running.close()
                current[engine] = running.enter_context(
                    region(engine, variables={"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint})
                )
            return current[engine]

        yield of


@pytest.fixture
def real(one_region) -> Region:
    return one_region("vllm")


@pytest.fixture
def simulated(one_region) -> Region:
    return one_region("sim")


def pytest_terminal_summary(terminalreporter, config):
    if figures := config.stash[_FIGURES]:
        terminalreporter.section("end-to-end figures")
        for line in figures:
            terminalreporter.line(line)
