"""The frontend of any model that comes with a Hugging Face chat template.

    frontend = load(Path("models/SmolLM2-135M-Instruct"))
    prompt = frontend.render(conversation, scope=tenant)  # ids, where the output starts, stop ids
    decoder = frontend.decoder(prompt, stop=["END"])
    events = decoder.push(ids)                   # as ids arrive
    events = decoder.finish(FinishReason.STOP)   # once

What it promises:
- The prompt is what Hugging Face's `apply_chat_template(tokenize=True)` gives, id for id, as long as no string of
  the request spells a control token. If one does, it stays text (docs/adr/0002-user-strings-in-templates.md).
- `render` and `decoder` may be called from any thread; tokenizing leaves the interpreter lock. `render` takes
  milliseconds to seconds, by the length of the prompt: keep it off an event loop.
- Output is text: content, and reasoning where a format is declared. Tool calls are not parsed, because a template
  does not tell how a model writes them.

Where it looks: `loading` (files), `vocabulary` (tokenizer.json), `template` (Jinja), `variables` (conversation to
template), `spellings` and `user_text` (whose text is whose), `text_encoder` (ids), `decoder` (events).
"""

from dayzero.frontend.chat_template.frontend import ChatTemplateFrontend
from dayzero.frontend.chat_template.loading import ChatTemplateOptions, load

__all__ = ["ChatTemplateFrontend", "ChatTemplateOptions", "load"]
