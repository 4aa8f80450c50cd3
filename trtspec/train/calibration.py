"""The text for calibrating quantisation: a given one, or one that the target writes itself, which
has other uses too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from trtspec.backends.registry import backends
from trtspec.builder.checkpoints import Checkpoint
from trtspec.builder.locate import cache_root
from trtspec.builder.tokenizer import has_tokenizer, read_tokenizer
from trtspec.errors import ConfigError
from trtspec.speculative.registry import trainable_methods
from trtspec.train.data import find_source, write_texts
from trtspec.train.options import TrainOptions
from trtspec.train.text_store import TextStore
from trtspec.train.windows import RecordedTexts

TOKENS, WINDOW = 4096, 512
"""Tokens in total, and per window: each token sees those before it in its window."""
_LEAST = 64
_RTN = "or give --quantize rtn, which reads no text"


def given_windows(
    checkpoint: Checkpoint, text: Path, tokenizer: Path | None = None
) -> list[Tensor]:
    """The first tokens of a file of plain text, in windows ``[T] i64``.

    Raises:
        ConfigError: it cannot be read, is too short, or the checkpoint has no tokenizer for it.
    """
    require_tokenizer(checkpoint, tokenizer)
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--calibration_text {text} cannot be read: {error}") from error
    ids = list(read_tokenizer(tokenizer or checkpoint.path)(words)["input_ids"])[:TOKENS]
    vocabulary = checkpoint.config.vocab_size
    if len(ids) < _LEAST or max(ids) >= vocabulary:
        raise ConfigError(
            f"--calibration_text {text} has {len(ids)} tokens, up to {max(ids, default=0)}; give "
            f"{_LEAST} or more, up to {TOKENS}, of the model's {vocabulary}, {_RTN}"
        )
    return _in_windows([ids], checkpoint)


def written_windows(checkpoint: Checkpoint, tokenizer: Path | None = None) -> list[Tensor]:
    """Texts that the target writes, as with `trtspec-train`.

    Raises:
        ConfigError: the checkpoint has no tokenizer.
        TrtspecError: no text is worth keeping, or the disk is full.
    """
    require_tokenizer(checkpoint, tokenizer)
    return _in_windows(written(checkpoint, TOKENS, WINDOW, tokenizer), checkpoint)


def written(
    checkpoint: Checkpoint, num_tokens: int, most: int, tokenizer: Path | None = None
) -> list[list[int]]:
    """Texts that the target writes, of ``num_tokens`` in total and at most ``most`` each, computed
    without an engine; see `written_windows`."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache_root(), prefix="texts-") as scratch:
        options = TrainOptions(
            method=trainable_methods()[0],  # texts depend on none
            model=str(checkpoint.path),
            output=Path(scratch) / "head",
            tokens=num_tokens,
            max_text_tokens=most,
            device="cpu",
            tokenizer=None if tokenizer is None else str(tokenizer),
            backend=next(each.name for each in backends().values() if not each.makes_artifacts),
        )
        store = TextStore(Path(scratch) / "texts")
        last = (checkpoint.config.num_layers,)  # texts come with a state
        write_texts(options, checkpoint, find_source(options, checkpoint, ()), last, store)
        texts = RecordedTexts(store.paths, (), checkpoint.config.num_layers)
        return [texts.token_ids(i).tolist() for i in range(len(store.paths))]


def require_tokenizer(checkpoint: Checkpoint, tokenizer: Path | None) -> None:
    """Raise ConfigError if there is no tokenizer to read a text with, its own or a given one."""
    if tokenizer is None and not has_tokenizer(checkpoint.path):
        raise ConfigError(
            f"{checkpoint.path} has no tokenizer to read a text by; put it beside the weights, "
            f"give one by --tokenizer, {_RTN}"
        )


def _in_windows(texts: Sequence[Sequence[int]], checkpoint: Checkpoint) -> list[Tensor]:
    length = min(WINDOW, checkpoint.config.usual_sequence)
    windows = [part for text in texts for part in torch.split(torch.tensor(text), length)]
    return [window for window in windows if len(window) > 1]
