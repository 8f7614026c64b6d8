"""Kimi K3's contract (KIMI_K3 section 5): fixed sampling, efforts, and what its messages and tools may be.

- Fixed: temperature in [0, 1], top_p 0.95, penalties 0, n 1. What would change the distribution in another way (top_k,
  min_p, repetition_penalty, logit_bias) is fixed too: only the value that means "off" is taken. A bias could forbid the
  control tokens that an answer is made of.
- Free: seed, logprobs, stop, and `min_tokens` and `ignore_eos`, which load generators need.
- Rules about messages and tools are in `moonshot_messages`.
"""

from dataclasses import dataclass

from dayzero.api.chat.request import ChatCompletionRequest
from dayzero.api.contracts.moonshot_messages import check_messages
from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import Thinking

TOP_P = 0.95

EFFORTS = {
    "low": "low",
    "high": "high",
    "max": "max",
    # For clients written for other models.
    "minimal": "low",
    "medium": "high",
    "xhigh": "max",
}
DEFAULT_EFFORT = "max"
OFF = "none"
THINKING_TYPES = ("enabled", "disabled")
KEEPS = ("all",)
"""Earlier reasoning always is part of the prompt."""


@dataclass(frozen=True, slots=True)
class MoonshotContract:
    default_top_p: float = TOP_P
    extended_messages: bool = True
    moonshot_usage: bool = True

    def check(self, request: ChatCompletionRequest) -> None:
        _check_sampling(request)
        self.thinking(request)
        check_messages(request)

    def thinking(self, request: ChatCompletionRequest) -> Thinking:
        """Off for `thinking.type: disabled` and for effort `none`; `thinking.effort` wins over `reasoning_effort`."""
        asked = request.thinking
        if asked is not None:
            if asked.type not in (None, *THINKING_TYPES):
                raise _not_one_of("thinking.type", THINKING_TYPES)
            if asked.keep not in (None, *KEEPS):
                raise _not_one_of("thinking.keep", KEEPS)
        effort = _effort(request.reasoning_effort, "reasoning_effort")
        if asked is not None and asked.effort is not None:
            effort = _effort(asked.effort, "thinking.effort")
        if effort == OFF or (asked is not None and asked.type == "disabled"):
            return Thinking(enabled=False)
        return Thinking(effort=effort or DEFAULT_EFFORT)


def _effort(value: str | None, field: str) -> str | None:
    """One of the model's own words, `none`, or None where nothing is asked."""
    if value is None or value == OFF:
        return value
    if value not in EFFORTS:
        raise _not_one_of(field, (*EFFORTS, OFF))
    return EFFORTS[value]


def _check_sampling(request: ChatCompletionRequest) -> None:
    if request.temperature is not None and request.temperature > 1:
        raise InvalidRequestError.of(
            "temperature", "This model's `temperature` is from 0 to 1; leave it out for 1.", code=_FIXED
        )
    for field, allowed in _ONLY.items():
        value = getattr(request, field)
        if value is not None and value not in allowed:
            raise InvalidRequestError.of(
                field, f"This model's `{field}` is {allowed[0]:g}; leave it out.", code=_FIXED
            )
    if request.logit_bias:
        raise InvalidRequestError.of(
            "logit_bias", "This model takes no `logit_bias`; leave it out.", code=_FIXED
        )


_FIXED = "fixed_parameter"
_ONLY: dict[str, tuple[float, ...]] = {
    "top_p": (TOP_P,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "n": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
}


def _not_one_of(field: str, values: tuple[str, ...]) -> InvalidRequestError:
    known = ", ".join(f"`{value}`" for value in values)
    return InvalidRequestError.of(field, f"`{field}` must be one of {known}.", code="invalid_value")


MOONSHOT = MoonshotContract()
