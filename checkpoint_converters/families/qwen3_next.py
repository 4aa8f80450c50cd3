"""Qwen3-Next's prediction modules; the model itself is not read yet."""

from __future__ import annotations

from checkpoint_converters.draft_names import FC
from checkpoint_converters.families.prediction_modules import (
    EMBEDDING_NORM,
    LAYER,
    NORM,
    STATE_NORM,
    PredictionModules,
)

QWEN3_NEXT_MODULES = PredictionModules(
    "Qwen3-Next",
    "mtp.",
    {
        LAYER: "mtp.layers.{n}.",
        FC: "mtp.fc.weight",
        EMBEDDING_NORM: "mtp.pre_fc_norm_embedding.weight",
        STATE_NORM: "mtp.pre_fc_norm_hidden.weight",
        NORM: "mtp.norm.weight",
    },
    unit_offset=True,
)
