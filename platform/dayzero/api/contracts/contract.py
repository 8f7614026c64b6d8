"""What a model's API promises beside the dialect: rules a request must keep, defaults, and where usage stands.

- A contract is chosen by the model, not by the dialect, and holds no state.
- It refuses; it never changes what was asked into something else.
"""

from typing import Protocol

from dayzero.api.chat.request import ChatCompletionRequest
from dayzero.frontend.conversation import Thinking


class Contract(Protocol):
    @property
    def default_top_p(self) -> float: ...

    @property
    def extended_messages(self) -> bool:
        """Whether messages carry tools of their own, pictures, `partial` and `reasoning_details`."""
        ...

    @property
    def moonshot_usage(self) -> bool:
        """`cached_tokens` at the top of usage too; in a stream, usage in the last chunk whether asked for or not."""
        ...

    def check(self, request: ChatCompletionRequest) -> None:
        """Raises InvalidRequestError naming the field. Linear in the request."""
        ...

    def thinking(self, request: ChatCompletionRequest) -> Thinking:
        """Raises InvalidRequestError naming the field."""
        ...
