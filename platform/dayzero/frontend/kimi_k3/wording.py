"""What the server itself says to the model, word for word (KIMI_K3 section 3)."""

TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
MORE_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
)
MUST_CALL = "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message."
MUST_NOT_CALL = (
    "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message."
)
EFFORTS = ("low", "medium", "high", "max")


def effort(level: str) -> str:
    return (
        "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
        "supported values include `low`, `medium`, `high`, and `max`.\n"
        f"Now the system is invoked with `thinking_effort={level}`."
    )


def response_format(kind: str) -> str:
    return (
        f"The system is invoked with `response_format={kind}`.\n"
        "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
    )


def json_schema(block: str) -> str:
    """`block`: the fenced schema."""
    return f"{response_format('json_schema')}\nThe JSON data must match the following schema:\n{block}"
