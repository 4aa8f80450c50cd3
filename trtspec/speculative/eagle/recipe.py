"""The training recipe for EAGLE-3 heads: one layer, unrolled over the positions that it will
draft."""

from __future__ import annotations

from typing import Any

from trtspec.config.model import ModelConfig
from trtspec.speculative.eagle.unrolled_attention import unrolled_attention
from trtspec.speculative.recipe import (
    ATTENTION,
    HeadRequest,
    TrainingRecipe,
    decoder_sizes,
    layer_weights,
)

_LOSS_DECAY = 0.9
"""Weight of a position's loss relative to that of the one before."""


def capture_layers(target: ModelConfig) -> tuple[int, ...]:
    """Outputs near the beginning, the middle and the end, as EAGLE's authors choose them."""
    count = target.num_layers
    return tuple(sorted({min(1, count - 1), max(0, count // 2 - 1), max(0, count - 4)}))


def settings(request: HeadRequest) -> dict[str, Any]:
    target = request.target
    rope = {"rope_type": "default", "rope_theta": target.ropes[0].theta}
    end = target.eos_token_ids[0] if target.eos_token_ids else None
    architecture = {
        **decoder_sizes(target),
        "num_hidden_layers": 1,
        "draft_vocab_size": request.vocabulary,
        "has_lm_head": True,
        "eagle_aux_hidden_state_layer_ids": list(capture_layers(target)),
        "bos_token_id": target.bos_token_id,
        "eos_token_id": end,
        "pad_token_id": end,
        "rms_norm_eps": target.norm.eps,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": rope,
        "_attn_implementation": ATTENTION,
    }
    return {
        "eagle_architecture_config": architecture,
        "eagle_offline": True,
        "eagle_ttt_steps": request.depth,
        "eagle_loss_decay_factor": _LOSS_DECAY,
        "eagle_use_torch_compile": False,
        # The default writes a yarn scaling into the checkpoint that the head never saw.
        "eagle_export_rope_scaling": {},
    }


def body_weights(target: ModelConfig) -> int:
    hidden = target.hidden_size
    return len(capture_layers(target)) * hidden * hidden + layer_weights(target, 2 * hidden)


EAGLE3_RECIPE = TrainingRecipe(
    algorithm="eagle",
    settings=settings,
    module="eagle_module",
    capture_layers=capture_layers,
    body_weights=body_weights,
    depth=5,
    depth_setting="eagle_ttt_steps",
    cuts_vocabulary=True,
    row_multiple=1,
    memory_bound=("_prepare_eagle_inputs", "_eagle_loss"),
    loss="cross-entropy with the target's distribution, the sum over the positions of a draft; "
    f"each counts {_LOSS_DECAY} of the one before",
    attention=unrolled_attention,
)
