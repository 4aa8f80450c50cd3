"""Checkpoints of drafts with mask rows: PARD's language models, P-EAGLE's EAGLE networks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.speculative.draft_model import read_language_model
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.eagle import (
    MASK_HIDDEN,
    EagleKind,
    detect,
    read_network,
    refuse_relatives,
)
from trtspec.speculative.parallel.checkpoint_mask import has_pard_token, read_mask_token
from trtspec.speculative.parallel.options import PardDecodingConfig, PEagleDecodingConfig
from trtspec.speculative.parallel.shape import PardConfig, PEagleConfig

_SPECULATORS = "peagle"


def _kind(folder: DraftFolder) -> EagleKind | None:
    """A P-EAGLE draft; None for any other."""
    refuse_relatives(folder)
    hf, headers = folder.hf, folder.tensors
    if MASK_HIDDEN not in headers and hf.get("speculators_model_type") != _SPECULATORS:
        return None
    kind = detect(hf, headers)
    if kind is None or kind.version != 3:
        return None
    return dataclasses.replace(kind, variant="P-EAGLE")


def _describe_p_eagle(folder: DraftFolder) -> str | None:
    kind = _kind(folder)
    return kind.describe() if kind else None


def _read_p_eagle(
    folder: DraftFolder, target: ModelConfig, token_map: Path | None
) -> DraftCheckpoint:
    kind = _kind(folder)
    assert kind is not None, "it was recognised"
    return read_network(
        folder,
        target,
        token_map,
        kind,
        PEagleDecodingConfig.method,
        lambda fields: PEagleConfig(mask_token=read_mask_token(folder.hf), **fields),
        lambda config: {MASK_HIDDEN: (MASK_HIDDEN, (config.hidden_in,))},
    )


def _is_pard(folder: DraftFolder) -> bool:
    """Whether config.json has what only such a draft has, if it describes a language model."""
    return has_pard_token(folder.hf)


def _describe_pard(folder: DraftFolder) -> str:
    token = read_mask_token(folder.hf)
    return f"draft: PARD, causal language model with mask token {token}"


def _read_pard(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    found = read_language_model(folder, target, token_map, _describe_pard(folder))
    config = found.config
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    try:
        config = PardConfig(**fields, mask_token=read_mask_token(folder.hf))
    except ConfigError as error:
        raise folder.hf.refuse(str(error)) from error
    return dataclasses.replace(found, config=config, method=PardDecodingConfig.method)


PARD_READER = DraftReader(
    "PARD",
    _is_pard,
    _describe_pard,
    _read_pard,
    rank=10,
    sign="a PARD draft has pard_token in its config.json",
)
P_EAGLE_READER = DraftReader(
    "P-EAGLE",
    lambda folder: _kind(folder) is not None,
    _describe_p_eagle,
    _read_p_eagle,
    rank=30,
    speculators=(_SPECULATORS,),
)
