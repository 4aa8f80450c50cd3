"""DeepSeek-V3 and what keeps prediction modules as it does, GLM-4.5: layers behind the target's."""

from __future__ import annotations

from checkpoint_converters.draft_names import EMBEDDING, FC, HEAD
from checkpoint_converters.families.prediction_modules import (
    EMBEDDING_NORM,
    LAYER,
    NORM,
    STATE_NORM,
    PredictionModules,
)

_OWN = {
    LAYER: "",
    FC: "eh_proj.weight",
    EMBEDDING_NORM: "enorm.weight",
    STATE_NORM: "hnorm.weight",
    NORM: "shared_head.norm.weight",
    HEAD: "shared_head.head.weight",
    EMBEDDING: "embed_tokens.weight",
}
_ROOT = "model.layers.{n}."
_PARTS = {common: _ROOT + name for common, name in _OWN.items()}

GLM_MODULES = PredictionModules(
    "GLM-4.5",
    _ROOT,
    _PARTS,
    model_types=("glm4_moe",),
    behind_target=True,
    feeds_normed=False,
)
DEEPSEEK_MODULES = PredictionModules("DeepSeek-V3", _ROOT, _PARTS, behind_target=True)
