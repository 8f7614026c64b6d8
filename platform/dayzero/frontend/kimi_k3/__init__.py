"""Kimi K3: vocabulary, prompt segments, output state machine. Every line from KIMI_K3.md; none from the checkpoint.

    frontend = load(Path("models/Kimi-K3"))
    prompt = frontend.render(conversation, scope=tenant)  # ids, what they leave open, what the answer may be
    decoder = frontend.decoder(prompt)           # ids of the answer to events

Where it looks: `loading` (files), `vocabulary` and `tokenizer` (text to ids), `layout` (conversation to blocks),
`writer` and `segments` (block to markup and texts), `renderer` (ids, and those remembered),
`decoder` (ids to events).
"""

from dayzero.frontend.kimi_k3.frontend import KimiK3Frontend
from dayzero.frontend.kimi_k3.loading import load

__all__ = ["KimiK3Frontend", "load"]
