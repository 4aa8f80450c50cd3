"""Does a draft fit its target? Checked before anything is built."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError

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


def check_pair(target_dir: Path, target: ModelConfig, draft_dir: Path, draft: ModelConfig) -> None:
    """Refuse a draft model that does not speak the target's tokens.

    Equal vocabularies are wanted. A smaller draft vocabulary passes when both tokenizers hold the
    very same tokens (families that pad their embedding to different sizes).

    Raises:
        ConfigError: the sizes or the tokenizers differ; both values are named.
    """
    same = None
    if has_tokenizer(target_dir) and has_tokenizer(draft_dir):
        same = _vocabulary(target_dir) == _vocabulary(draft_dir)
    if same is False:
        raise ConfigError(
            "the draft's tokenizer differs from the target's: "
            f"{_difference(target_dir, draft_dir)}; a draft model must share its target's tokenizer"
        )
    padded = same and draft.vocab_size < target.vocab_size
    if draft.vocab_size != target.vocab_size and not padded:
        raise ConfigError(
            f"the target has a vocabulary of {target.vocab_size} tokens, the draft of "
            f"{draft.vocab_size}; a draft model must share its target's vocabulary"
        )


def _vocabulary(folder: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = AutoTokenizer.from_pretrained(str(folder)).get_vocab()
    return vocabulary


def _difference(target_dir: Path, draft_dir: Path) -> str:
    target, draft = _vocabulary(target_dir), _vocabulary(draft_dir)
    if len(target) != len(draft):
        return f"{len(target)} tokens against {len(draft)}"
    token = min(t for t in target if draft.get(t) != target[t])
    return f"token {token!r} has id {target[token]} there and {draft.get(token)} here"
