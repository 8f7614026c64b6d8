"""The engine seam's errors.

DayzeroError
├── EngineError                  500  something in the engine failed
│   ├── EngineDeadError          503  the engine is gone or makes no progress; another replica may serve
│   ├── EngineDrainingError      503  it takes no new work; another replica may serve
│   ├── EngineOverloadedError    503  its queue is full; another replica may serve
│   ├── EngineStartError         500  it did not come up; the message says why
│   └── EngineProtocolError      500  bytes of another version or shape
└── InvalidRequestError
    ├── ContextLengthError       400  prompt plus output do not fit the model
    └── UnsupportedFeatureError  400  this engine cannot do what was asked (a grammar, LoRA, media)
"""

from dayzero.errors import DayzeroError, InvalidRequestError


class EngineError(DayzeroError):
    """Something in the engine failed; the request ends with it."""


class EngineDeadError(EngineError):
    """Raised from `generate` and `health` when the engine's process is gone or makes no progress."""

    status = 503
    default_code = "engine_dead"
    retryable = True


class EngineDrainingError(EngineError):
    """Raised from `generate` after `drain` began."""

    status = 503
    default_code = "engine_draining"
    retryable = True


class EngineOverloadedError(EngineError):
    """Raised from `generate` when the engine's own queue is full."""

    status = 503
    default_code = "engine_overloaded"
    retryable = True


class EngineStartError(EngineError):
    """Raised from `start`; the message names the cause and what to do."""


class EngineProtocolError(EngineError):
    """Raised when bytes from a peer are of another version or shape."""


class ContextLengthError(InvalidRequestError):
    """Raised from `generate` when the prompt leaves no room for a token in the model's context."""

    default_code = "context_length_exceeded"


class UnsupportedFeatureError(InvalidRequestError):
    """Raised from `generate` when this engine cannot do what was asked."""

    default_code = "unsupported_feature"
