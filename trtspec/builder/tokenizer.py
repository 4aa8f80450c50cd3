"""A checkpoint's tokenizer: its files, reading it, and its end tokens.

A checkpoint is a folder with tokenizer files, or a GGUF file (or a folder with one) that contains
its tokenizer in its metadata.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from checkpoint_converters.containers.gguf_file import find_gguf, open_gguf
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.tokenizers.gguf_tokenizer import (
    TOKENIZER_GGUF,
    gguf_tokenizer,
    has_vocabulary,
)
from checkpoint_converters.tokenizers.turn_ends import ends_among
from trtspec.builder.tokenizer_rule import warn_of_other_rule
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError

# Where processors keep the template of a conversation, beside or instead of the tokenizer's files.
_PROCESSOR_TEMPLATE = "chat_template.json"
# Patterns. The named templates come first, for their fingerprint: it has no folders in it.
TOKENIZER_FILES = (
    "additional_chat_templates/*.jinja",
    "tokenizer.json",
    "tokenizer.*.json",  # versions, which tokenizer_config.json may prefer
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.*",
    "tekken.json",
    "*.tiktoken",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    _PROCESSOR_TEMPLATE,
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    TOKENIZER_GGUF,
)


_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
"""Key under which transformers remembers that it has given its warning about long texts."""


def has_tokenizer(folder: Path) -> bool:
    """True if the checkpoint has a tokenizer of some kind."""
    gguf = _gguf_of(folder)
    if gguf is not None:
        return has_vocabulary(open_gguf(gguf))
    return any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    )


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint. Code in the checkpoint is never run. A warning is logged if
    transformers reads it by another rule than its tokenizer.json specifies.

    Raises:
        CheckpointError: it cannot be read.
    """
    tokenizer = _read(folder)
    # Prompts that are too long are refused by name; transformers would warn of its own limit.
    tokenizer.deprecation_warnings[_TOO_LONG] = True
    return tokenizer


def _read(folder: Path) -> Any:
    gguf = _gguf_of(folder)
    if gguf is not None:
        return gguf_tokenizer(open_gguf(gguf))
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if not getattr(tokenizer, "chat_template", None):
            tokenizer.chat_template = _processor_template(folder)
    except Exception as error:
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read: {error}; mend it, give another "
            "(tokenizer), or skip it (skip_tokenizer_init) and give token ids"
        ) from error
    warn_of_other_rule(tokenizer, folder)
    return tokenizer


def _gguf_of(folder: Path) -> Path | None:
    """The GGUF file that contains a checkpoint's tokenizer; None if other files do, or none."""
    own = folder / TOKENIZER_GGUF
    return own if own.is_file() else find_gguf(folder)


def tokenizer_folder(given: str | Path) -> Path:
    """The location of a requested tokenizer: a folder or a GGUF file.

    Raises:
        CheckpointError: there is none.
    """
    folder = Path(os.path.expanduser(given))
    if not folder.exists() or not has_tokenizer(folder):
        raise CheckpointError(
            f"tokenizer {str(given)!r} is no folder with a tokenizer (tokenizer.json or "
            "tokenizer.model), nor a GGUF file with one"
        )
    return folder


def find_tokenizer(folder: Path, skip_damaged: bool) -> Any:
    """The tokenizer of a checkpoint, or None without one; with ``skip_damaged`` also None for one
    that cannot be read, which otherwise raises CheckpointError."""
    if not has_tokenizer(folder):
        return None
    try:
        return read_tokenizer(folder)
    except CheckpointError:
        if skip_damaged:
            return None
        raise


def tokenizer_fingerprint(folder: Path) -> str:
    """Fingerprint of a tokenizer alone; a GGUF file counts as a whole."""
    gguf = find_gguf(folder)
    return hash_files(tokenizer_files(folder) if gguf is None else [gguf])


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a checkpoint's tokenizer; none for a GGUF file, which is the weight file
    itself."""
    if find_gguf(folder) is not None:
        return []
    return [
        path
        for pattern in TOKENIZER_FILES
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    ]


def save_tokenizer(folder: Path, output_dir: Path) -> None:
    """Copy a checkpoint's tokenizer files, or write those that a GGUF file describes. A tokenizer
    that cannot be read is left out."""
    if find_gguf(folder) is not None:
        tokenizer = find_tokenizer(folder, skip_damaged=True)
        if tokenizer is not None:
            tokenizer.save_pretrained(output_dir)
        return
    # The checkpoint's own config.json goes along: some tokenizers are chosen by its model_type.
    for file in (*tokenizer_files(folder), folder / "config.json"):
        if file.is_file():
            copy = output_dir / file.relative_to(folder)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


def _processor_template(folder: Path) -> str | None:
    """The template in chat_template.json, where multimodal checkpoints may keep their only one;
    None without that file."""
    file = folder / _PROCESSOR_TEMPLATE
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    template = content.get("chat_template") if isinstance(content, dict) else None
    if not isinstance(template, str):
        raise ValueError(f"{file.name} holds no text under `chat_template`")
    return template


def further_ends(tokenizer: Any, model: ModelConfig) -> dict[int, str]:
    """Tokens by which a tokenizer ends a text but which the model's configs do not name, with their
    texts. They are its EOS, as in vLLM, and known end-of-turn tokens, as in llama.cpp; only those
    with a row of logits, and none if the tokenizer is None. A model's end tokens are
    ``eos_token_ids`` and these."""
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special = {str(token): i for i, token in added.items() if token.special}
    found = {special[text]: text for text in ends_among(special)}
    end = getattr(tokenizer, "eos_token_id", None)
    if isinstance(end, int):
        found = {end: str(tokenizer.eos_token), **found}
    known = model.eos_token_ids
    return {i: text for i, text in found.items() if i not in known and 0 <= i < model.vocab_size}


def with_ends(model: ModelConfig, tokenizer: Any) -> tuple[ModelConfig, list[str]]:
    """A model with the tokenizer's end tokens added, and lines about that. Everything that concerns
    a checkpoint's end tokens goes through here: see `target_config` and `load_target`."""
    further = further_ends(tokenizer, model)
    if not further:
        return model, []
    named = ", ".join(f"{end} ({text})" for end, text in further.items())
    reason = (
        f"a text ends at token {named} too: the tokenizer says so, "
        "config.json and generation_config.json do not"
    )
    return replace(model, eos_token_ids=(*model.eos_token_ids, *further)), [reason]
