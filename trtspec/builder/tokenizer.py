"""The tokenizer of a checkpoint: its files, reading it, and the token at which it ends a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)


def has_tokenizer(folder: Path) -> bool:
    """True if the folder holds a tokenizer of some kind."""
    return any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    )


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder. No code that lies beside it is run, nor offered to be.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read: {error}; mend it, or skip it "
            "(skip_tokenizer_init) and give token ids"
        ) from error


def find_tokenizer(folder: Path, skip_damaged: bool) -> Any:
    """The tokenizer in a folder, or None without one; with ``skip_damaged`` also for one that
    cannot be read, which is a CheckpointError otherwise."""
    if not has_tokenizer(folder):
        return None
    try:
        return read_tokenizer(folder)
    except CheckpointError:
        if skip_damaged:
            return None
        raise


def further_end(tokenizer: Any, model: ModelConfig) -> int | None:
    """The token by which a tokenizer ends a text, if the configs of its model do not name it; the
    text ends there as well, as it does in vLLM. None if they do, or if the model has no such
    token."""
    end = getattr(tokenizer, "eos_token_id", None)
    if not isinstance(end, int) or end in model.eos_token_ids or not 0 <= end < model.vocab_size:
        return None
    return end
