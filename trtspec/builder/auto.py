"""resolve_auto: the methods that `auto` stands for, once the draft's files have been read."""

from __future__ import annotations

from pathlib import Path

from checkpoint_converters import read_config, read_draft
from trtspec.builder.locate import find_model
from trtspec.config.auto import AutoDecodingConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.speculative.registry import methods


def resolve_auto(
    speculative: DecodingConfig | None, target: ModelConfig | Path
) -> DecodingConfig | None:
    """Any other config as it is. `target`: its config, or its checkpoint's folder.

    Raises:
        CheckpointError: the draft cannot be found or read, or does not fit the target.
    """
    if not isinstance(speculative, AutoDecodingConfig):
        return speculative
    if speculative.speculative_model is None:
        return speculative.resolved(None)
    if isinstance(target, Path):
        target = read_config(target)
    draft = read_draft(find_model(speculative.speculative_model), target, None)
    return speculative.resolved(methods()[draft.config.method].options)
