"""let_write: a target writes texts, so that the tokens it uses can be counted for its draft."""

from __future__ import annotations

from pathlib import Path

from trtspec.builder.checkpoints import load_target
from trtspec.builder.locate import find_model
from trtspec.builder.token_lists import keep_written, written_path
from trtspec.builder.tokenizer import has_tokenizer, tokenizer_folder
from trtspec.config.decoding import DecodingConfig
from trtspec.config.tree_decoding import with_networks
from trtspec.engine.folder import is_engine_folder
from trtspec.errors import BuildError, ConfigError
from trtspec.log import logger, progress
from trtspec.train.calibration import written

TOKENS, MOST = 16384, 512
"""Tokens written in total, and per text. Tokens that do not occur are ranked by id."""


def let_write(
    model: str | Path, speculative: DecodingConfig | None, tokenizer: str | Path | None = None
) -> None:
    """If a draft is to propose as many tokens as pay, and there is no text to count them in, let
    the target write one, once: it is kept in the user's cache folder (`token_list` reads it).
    ``tokenizer``: to be used instead of the target's own.

    Raises:
        ConfigError: the target has no tokenizer.
        CheckpointError: neither does ``tokenizer``.
        BuildError: the texts cannot be stored.
        TrtspecError: the target cannot be run, or writes nothing worth keeping.
    """
    asked = (member.cut for member in with_networks(speculative))
    if not any(cut and cut.size is None and cut.file is None and cut.text is None for cut in asked):
        return
    folder = find_model(model)
    if is_engine_folder(folder):  # its draft has been cut, or has not
        return
    another = None if tokenizer is None else tokenizer_folder(tokenizer)
    kept = written_path(folder, another)
    if kept.is_file():
        logger.info("vocabulary auto: counted is what the target wrote before")
        return
    if another is None and not has_tokenizer(folder):
        raise ConfigError(
            f"vocabulary='auto': {folder} has no tokenizer to write a text by; give a number of "
            "tokens, a file of their ids, or a tokenizer"
        )
    checkpoint = load_target(folder, another)
    with progress(f"let the target write {TOKENS} tokens to choose the draft's vocabulary"):
        texts = written(checkpoint, TOKENS, MOST, another)
    try:
        keep_written(folder, texts, another)
    except OSError as error:
        raise BuildError(f"{kept} cannot be written: {error}") from error
