"""The HTTP edge's errors.

InvalidRequestError
├── BodyError                 400  the body is empty, not JSON, or not of the endpoint's shape
├── BodyTooLargeError         413  refused before it was read whole
├── ModelNotFoundError        404  param `model`
├── RouteNotFoundError        404
└── MethodNotAllowedError     405
"""

from dayzero.errors import InvalidRequestError


class BodyError(InvalidRequestError):
    """Raised when a body cannot be read as the endpoint's request; `param` names the field where one is at fault."""


class BodyTooLargeError(InvalidRequestError):
    """Raised before a body is read to its end, or before it is read at all when its length is declared."""

    status = 413
    default_code = "request_too_large"


class ModelNotFoundError(InvalidRequestError):
    """Raised when `model` names none of this fleet's models."""

    status = 404
    default_code = "model_not_found"


class RouteNotFoundError(InvalidRequestError):
    """Raised for a path that does not exist."""

    status = 404
    default_code = "unknown_url"


class MethodNotAllowedError(InvalidRequestError):
    """Raised for a path that exists with another method."""

    status = 405
    default_code = "method_not_allowed"
