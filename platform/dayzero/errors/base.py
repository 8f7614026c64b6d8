"""DayzeroError, its wire form, and the one kind that every layer may raise: a request that is not valid."""

from typing import Any, ClassVar, Self


class DayzeroError(Exception):
    """An error with an HTTP status and a wire form.

    Class attributes are the defaults of a kind; `code`, `param` and `retry_after_s` may differ per instance.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s

    def openai(self) -> dict[str, Any]:
        """OpenAI's error body: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def fields(self) -> dict[str, Any]:
        """What the constructor takes beside the message; a kind with more of it adds its own."""
        return {"param": self.param, "code": self.code, "retry_after_s": self.retry_after_s}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields())


def _rebuild(kind: type[DayzeroError], message: str, fields: dict[str, Any]) -> DayzeroError:
    return kind(message, **fields)


class InvalidRequestError(DayzeroError):
    """400: the request itself is at fault; `param` names the field."""

    status = 400
    type = "invalid_request_error"

    @classmethod
    def of(cls, param: str, message: str, *, code: str | None = None) -> Self:
        return cls(message, param=param, code=code)
