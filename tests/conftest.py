"""Fixtures that several kinds of test share."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

from dayzero.frontend import chat_template, kimi_k3
from dayzero.frontend.kimi_k3.vocabulary_source import VARIABLE
from dayzero.serving.weights import ensure_tokenizer

# A busy machine is no failure. Where a run decides about a change it is repeatable; elsewhere each run tries new examples.
hypothesis.settings.register_profile("dayzero", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("dayzero")


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard():
    """A runner in the background ignores some signals (nohup, `&`), and what it starts would inherit that."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="module", autouse=True)
def _environment_is_restored():
    """Libraries set variables for their children (vLLM names its collector so); the next module starts without."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


# Kimi K3's own vocabulary is no part of this repository; where it lies beside it, tests use it.
K3_VOCABULARY = Path(__file__).parents[2] / "shared/data/kimi-k3/tiktoken.model"


@pytest.fixture(scope="session", autouse=True)
def _k3_vocabulary_is_named():
    """What a test starts finds it as a deployment would: by the variable."""
    if K3_VOCABULARY.is_file():
        os.environ.setdefault(VARIABLE, str(K3_VOCABULARY))


@pytest.fixture(scope="session")
def k3_vocabulary() -> Path:
    """Kimi K3's real vocabulary; skips where there is none."""
    path = Path(os.environ.get(VARIABLE) or K3_VOCABULARY)
    if not path.is_file():
        pytest.skip(f"needs Kimi K3's tiktoken.model: set {VARIABLE}")
    return path


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory) -> Path:
    """SmolLM2's real tokenizer, template and configuration, without its weights."""
    return ensure_tokenizer(tmp_path_factory.mktemp("models") / "smollm2")


@pytest.fixture(scope="session")
def smollm2(smollm2_folder):
    """The frontend of the model that a local fleet serves."""
    return chat_template.load(smollm2_folder)


@pytest.fixture(scope="session")
def k3():
    """Kimi K3's frontend with the small vocabulary shipped here."""
    return kimi_k3.load(environ={})
