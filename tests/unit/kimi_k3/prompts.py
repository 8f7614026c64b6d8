"""How a test reads a prompt: its segments spelled out, its ids back as text and control ids."""

import numpy as np

from dayzero.frontend.conversation import Conversation, Message, Role, Text, Thinking, Tool, ToolCall

OPENING = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
USER = Message(Role.USER, (Text("go"),))
RETURN = "<|close|>message<|sep|><|end_of_msg|>"
OFF = Thinking(enabled=False)


def said(role, text, **more):
    return Message(Role(role), (Text(text),), **more)


def called(*calls, **more):
    """An assistant's message: (id, name) or (id, name, arguments) for each call."""
    return Message(Role.ASSISTANT, tool_calls=tuple(ToolCall(*(*call, "")[:3]) for call in calls), **more)


def result(text, call_id=None, name=None):
    return Message(Role.TOOL, (Text(text),), tool_call_id=call_id, name=name)


def tool(name, **function):
    return Tool(name, {"type": "function", "function": {"name": name, **function}})


def of(*messages, **more):
    return Conversation(tuple(messages), **more)


def spelled(frontend, conversation):
    """Texts and the names of control ids, joined."""
    names = frontend.vocabulary.specials.names()
    return "".join(names.get(segment, segment) for segment in frontend.written(conversation))


def ids_of(prompt):
    return np.frombuffer(prompt.ids, "<u4").tolist()


def controls_and_texts(vocabulary, ids):
    """Ids → control ids, and between them what the ids say as text."""
    first, found, run = vocabulary.specials.ranks, [], []
    for one in [*ids, first]:
        if one < first:
            run.append(one)
            continue
        if run:
            found.append(vocabulary.table.bytes_of(run).decode())
        run = []
        found.append(one)
    return found[:-1]


def controls_and_segments(segments):
    """Segments in the same form: neighbouring texts joined."""
    found = []
    for segment in segments:
        if isinstance(segment, str) and found and isinstance(found[-1], str):
            found[-1] += segment
        else:
            found.append(segment)
    return found
