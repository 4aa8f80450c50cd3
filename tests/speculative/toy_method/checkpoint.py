"""The toy's checkpoints: ``turn.weight``, and a config.json that says ``toy_reads``."""

from __future__ import annotations

from pathlib import Path

from checkpoint_converters import DraftCheckpoint, DraftFolder
from checkpoint_converters.containers.safetensors_files import LazyTensors, weight_files
from checkpoint_converters.names import match
from trtspec.config.model import ModelConfig
from trtspec.speculative.draft_reader import DraftReader

from .options import ToyDecodingConfig
from .shape import ToyConfig

KEY = "toy_reads"
"""In config.json, the target's layer whose output is read."""


def _read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    folder.refuse_token_map("a toy", token_map)
    layer, hidden = folder.hf.require(KEY), target.hidden_size
    if not 0 <= layer < target.num_layers:
        raise folder.hf.refuse(f"{KEY} is {layer}, the target has {target.num_layers} layers")
    expected = {"turn.weight": ("turn.weight", (hidden, 2 * hidden))}
    headers = folder.headers
    found = match(expected, headers, (), f"{folder.path} does not fit a toy")
    return DraftCheckpoint(
        folder.path,
        ToyDecodingConfig.method,
        ToyConfig(hidden, target.vocab_size, (layer,)),
        LazyTensors(found.tensors),
        found.ignored,
        (f"draft: a toy that reads layer {layer}",),
        tuple(weight_files(headers)),
    )


TOY_READER = DraftReader(
    "toys",
    lambda folder: folder.hf.get(KEY) is not None,
    lambda folder: "draft: a toy",
    _read,
    sign=f"a toy's config.json says {KEY}",
)
