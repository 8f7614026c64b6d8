"""The contract of any model with a chat template: OpenAI's, with nothing of its own.

What other servers' messages carry beside OpenAI's fields (`partial`, a message's tools, `thinking`) is ignored.
"""

from dataclasses import dataclass

from dayzero.api.chat.request import ChatCompletionRequest, SystemMessage
from dayzero.api.errors import BodyError
from dayzero.frontend.conversation import Thinking


@dataclass(frozen=True, slots=True)
class OpenAIContract:
    default_top_p: float = 1.0
    extended_messages: bool = False
    moonshot_usage: bool = False

    def check(self, request: ChatCompletionRequest) -> None:
        """Raises BodyError."""
        for i, message in enumerate(request.messages):
            if isinstance(message, SystemMessage) and message.content is None:
                raise BodyError.of(
                    f"messages[{i}].content",
                    f"Missing required field `messages[{i}].content`.",
                    code="missing_required_parameter",
                )

    def thinking(self, request: ChatCompletionRequest) -> Thinking:
        """The effort is the template's to understand; `none` is off."""
        effort = request.reasoning_effort
        return Thinking(enabled=effort != "none", effort=effort)


OPENAI = OpenAIContract()
