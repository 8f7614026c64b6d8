"""Every error of the product: documented, picklable, in OpenAI's shape, and safe to send over the wire."""

import importlib
import pickle
import pkgutil

import pytest

from dayzero.engine import frames
from dayzero.engine.errors import EngineDeadError, EngineError, EngineProtocolError
from dayzero.engine.types import TokenDelta
from dayzero.errors import DayzeroError, InvalidRequestError

AREAS = (
    "api",
    "config",
    "engine",
    "errors",
    "frontend",
    "gateway",
    "router",
    "serving",
    "telemetry",
    "tenancy",
)


def every_error():
    for area in AREAS:
        package = importlib.import_module(f"dayzero.{area}")
        for module in pkgutil.walk_packages(package.__path__, f"dayzero.{area}."):
            if module.name.endswith(".errors") or module.name == "dayzero.serving.ticket":
                importlib.import_module(module.name)
    found, todo = set(), [DayzeroError]
    while todo:
        kind = todo.pop()
        found.add(kind)
        todo += kind.__subclasses__()
    return sorted(found, key=lambda kind: kind.__qualname__)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__qualname__)
def test_every_error_pickles_with_its_fields_and_has_openais_shape(kind):
    error = kind("what to do", param="messages[0]", code="a_code", retry_after_s=2.0)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.param, copy.code, copy.retry_after_s) == (
        "what to do",
        "messages[0]",
        "a_code",
        2.0,
    )
    assert set(copy.openai()["error"]) == {"message", "type", "param", "code"}
    assert 400 <= kind.status < 600
    assert kind.__doc__
    assert kind.retryable in (True, False)
    assert not (kind.retryable and kind.status < 500), "the same request would be refused again"


def test_the_tree_has_been_found():
    names = {kind.__name__ for kind in every_error()}
    assert {"BodyError", "EngineDeadError", "NoReplicaError", "AuthenticationError", "FrontendError"} <= names


def test_an_engines_error_crosses_as_data_and_is_raised_again():
    with pytest.raises(EngineDeadError) as raised:
        frames.decode(frames.encode_error(EngineDeadError("gone", retry_after_s=1.5)))
    assert (raised.value.message, raised.value.retry_after_s) == ("gone", 1.5)


def test_a_kind_that_the_other_side_does_not_know_arrives_as_the_nearest_one_it_knows():
    class NewerError(EngineDeadError):
        """From a newer replica."""

    with pytest.raises(EngineDeadError):
        frames.decode(frames.encode_error(NewerError("gone")))
    with pytest.raises(InvalidRequestError) as refused:
        frames.decode(frames.encode_error(InvalidRequestError.of("seed", "no")))
    assert refused.value.param == "seed"
    with pytest.raises(EngineError):
        frames.decode(frames.encode_error(DayzeroError("?")))


@pytest.mark.parametrize("frame", [b"", b"x", b"d\xff", b"e\xff", b"e"])
def test_bytes_that_are_no_frame_are_a_protocol_error(frame):
    with pytest.raises(EngineProtocolError):
        frames.decode(frame)


def test_merged_deltas_are_the_deltas_joined():
    a, b = TokenDelta(token_ids=(1,)), TokenDelta(token_ids=(2, 3))
    assert frames.merge([a]) is a
    assert frames.merge([a, b]).token_ids == (1, 2, 3)
    assert frames.decode(frames.encode_delta(b)) == b
