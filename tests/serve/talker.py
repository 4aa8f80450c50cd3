"""A tiny model with the marks of every family as tokens, and chat templates that show whose they
are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from trtspec.llmapi.prompts import load_tokenizer
from trtspec.serve.tools.registry import TOOL_PARSERS

from ..e2e.helpers import TinyModels
from ..e2e.tiny_tokenizer import save_bytes

_VOCAB, _BYTES = 352, 300
_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that are shown, as in Qwen's vocabulary; the others are special."""
_BODY = (
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments }}{% endfor %}"
    "{{ m.tool_call_id or '' }}{{ m.reasoning_content }}\n"
    "{% endfor %}{% if tools %}{% for t in tools %}{{ t.function.name }},{% endfor %}{% endif %}"
)


def template(parser: str, thinks: bool = False, tail: str = "assistant:") -> str:
    """A chat template of such a model."""
    (found,) = (each for each in TOOL_PARSERS if parser in (each.name, *each.others))
    signs = [*found.signs, *(["</think>"] if thinks else [])]
    return _BODY + "{# " + " ".join(signs) + " #}" + tail


def save_talker(models: TinyModels) -> Path:
    """The model's folder."""
    torch.manual_seed(9)
    config = LlamaConfig(
        vocab_size=_VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024,
        bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    hf = LlamaForCausalLM(config).eval()
    folder: Path = models.save(hf, "talker")
    save_bytes(folder, _BYTES, end="<|eot|>")
    tokenizer: Any = load_tokenizer(folder)
    marks = dict.fromkeys(mark for parser in TOOL_PARSERS for mark in parser.marks)
    special = [m for m in marks if m not in _PLAIN and not m.startswith(("<arg", "</arg"))]
    tokenizer.add_tokens([AddedToken(mark, special=False) for mark in _PLAIN])
    tokenizer.add_special_tokens({"extra_special_tokens": special})
    assert len(tokenizer) <= _VOCAB
    tokenizer.chat_template = template("hermes")
    tokenizer.save_pretrained(folder)
    return folder
