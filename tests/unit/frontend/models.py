"""Small tokenizers, trained here in a moment, and templates in the manner of well-known model families.

Training them needs the library `tokenizers`, which comes with the engine: tests that want one skip without it.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the system said: hello user, hello assistant!",
    'def tool_call(name, arguments):\n    return {"name": name, "arguments": arguments}\n\n    # think end start',
    "Il était une fois; schöne Grüße; 漢字かな交じり文、それから。Привет мир. 😀 🏴‍☠️ <tag> im_start im_end |> <| [INST]",
]

GPT4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Model:
    """What a model's folder is written from."""

    name: str
    template: str
    controls: tuple[str, ...]
    bos: str | None = None
    eos: str | None = None
    plain_controls: tuple[str, ...] = ()
    rstrip: bool = False
    sentencepiece: Literal["", "metaspace", "normalizer"] = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = sentencepiece_bpe(self) if self.sentencepiece else byte_level_bpe(self)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= {key: token for key, token in (("bos_token", self.bos), ("eos_token", self.eos)) if token}
        (folder / "tokenizer_config.json").write_text(json.dumps(config | self.extra))
        (folder / "chat_template.jinja").write_text(self.template)
        return folder


def _added(tokenizer: Any, model: Model) -> dict[str, Any]:
    tokenizers = pytest.importorskip("tokenizers")
    special = [
        tokenizers.AddedToken(c, special=True, normalized=False, rstrip=model.rstrip) for c in model.controls
    ]
    tokenizer.add_special_tokens(special)
    plain = [tokenizers.AddedToken(c, special=False, normalized=False) for c in model.plain_controls]
    tokenizer.add_tokens(plain)
    return json.loads(tokenizer.to_str())


def byte_level_bpe(model: Model, vocab_size: int = 600) -> dict[str, Any]:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(GPT4_PATTERN), behavior="isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return _added(tokenizer, model)


def sentencepiece_bpe(model: Model, vocab_size: int = 800) -> dict[str, Any]:
    """`▁` for a space, bytes as `<0x0A>`, all in one BPE: by a pre-tokenizer (Mistral) or a normalizer (Gemma)."""
    tokenizers = pytest.importorskip("tokenizers")
    base = tokenizers.Tokenizer(tokenizers.models.BPE())
    base.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    base.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=names, show_progress=False)
    base.train_from_iterator([text[:90] for text in CORPUS] * 4, trainer)
    trained = json.loads(base.to_str())["model"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            trained["vocab"],
            [tuple(merge) for merge in trained["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [
        tokenizers.decoders.Replace("\u2581", " "),
        tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse(),
    ]
    if model.sentencepiece == "metaspace":
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        steps.append(tokenizers.decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = tokenizers.decoders.Sequence(steps)
    return _added(tokenizer, model)


CHATML = Model(
    "chatml",
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    controls=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    eos="<|im_end|>",
)

LLAMA3 = Model(
    "llama3",
    """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today: ' + strftime_now('%d %b %Y') + '\\n\\n' + system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    controls=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
)

QWEN = Model(
    "qwen",
    """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{ tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nAnswer within <tool_call></tool_call>.<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == 'user' or message.role == 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if thought and loop.last %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content.lstrip('\\n') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
""",
    controls=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    plain_controls=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    eos="<|im_end|>",
)

ZEPHYR = Model(
    "zephyr",
    """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    controls=("</s>", "<|user|>", "<|system|>", "<|assistant|>"),
    eos="</s>",
)

PHI = Model(
    "phi",
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    controls=("<|endoftext|>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>"),
    eos="<|endoftext|>",
    rstrip=True,
)

MISTRAL = Model(
    "mistral",
    """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}
{% endif %}{% endfor %}""",
    controls=("<s>", "</s>", "[INST]", "[/INST]"),
    bos="<s>",
    eos="</s>",
    sentencepiece="metaspace",
)

GEMMA = Model(
    "gemma",
    """{{ bos_token }}{% for message in messages %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' }}
{% if message['content'] is string %}{{ message['content'] | trim }}
{% else %}{% for item in message['content'] %}{% if item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}
{% endfor %}{% endif %}
{{ '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    controls=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    eos="<eos>",
    sentencepiece="normalizer",
)

FAMILIES = (CHATML, LLAMA3, QWEN, ZEPHYR, PHI, MISTRAL, GEMMA)
