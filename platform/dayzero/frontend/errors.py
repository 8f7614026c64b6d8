"""The frontend's errors.

InvalidRequestError
└── FrontendError              400  this conversation cannot be rendered for this model
DayzeroError
└── FrontendLoadError          500  the model's tokenizer or template cannot be used; the message says why
"""

from dayzero.errors import DayzeroError, InvalidRequestError


class FrontendError(InvalidRequestError):
    """Raised by `render`; `param` names the field (`messages[3].content`)."""


class FrontendLoadError(DayzeroError):
    """Raised when a frontend is made; nothing a request can cause."""
