"""Checkpoints of causal language models that draft."""

from __future__ import annotations

from pathlib import Path

from checkpoint_converters.checkpoint import load_checkpoint
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from trtspec.config.model import ModelConfig
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.draft_reader import DraftReader


def read_language_model(
    folder: DraftFolder,
    target: ModelConfig,
    token_map: Path | None,
    what: str = "draft: causal language model",
) -> DraftCheckpoint:
    """Any checkpoint that can be a target can draft; ``what``: how messages call it. Its head keeps
    the rows that ``token_map`` names."""
    model = load_checkpoint(folder.path, folder.auxiliary)
    config = model.config
    note = (
        f"{what} ({config.architecture}, {config.num_layers} layers of width {config.hidden_size})"
    )
    method = DraftTargetDecodingConfig.method
    found = DraftCheckpoint(
        folder.path, method, config, model.tensors, model.ignored, (note,), model.files
    )
    return found if token_map is None else found.cut_to(token_map, target)


def _read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    return read_language_model(folder, target, token_map)


LANGUAGE_MODEL_READER = DraftReader(
    "causal language models", lambda folder: True, lambda folder: None, _read, rank=0
)
