"""Conversations and how to read what they became, for the tests of rendering."""

import numpy as np

from dayzero.frontend.conversation import Conversation, Message, Role, Text

USER = Message(Role.USER, (Text("q"),))

SPEC = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather now, in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'a "name"'},
                "name": {"enum": ["a", None, 1.5]},
            },
            "required": ["city"],
        },
    },
}


def said(*turns):
    return Conversation(tuple(Message(Role(role), (Text(text),)) for role, text in turns))


def ids_of(prompt):
    return np.frombuffer(prompt.ids, "<u4").tolist()


def spelled(frontend, ids):
    return b"".join(frontend.token_text(i)[1] for i in ids).decode()
