"""Training recipes for block networks: guesses after random anchors of a text, all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtspec.config.model import ModelConfig
from trtspec.speculative.recipe import (
    HeadRequest,
    TrainingRecipe,
    decoder_sizes,
    layer_weights,
)

_LAYERS = (2, 5)
"""Fewest and most layers of a network; in between, one for each `_TARGET_LAYERS` of the target."""
_TARGET_LAYERS = 8
_BLOCK = 8
_RANK = 256
"""Rank of the bias in DSpark's published drafts; half the width for narrower targets."""


def capture_layers(target: ModelConfig) -> tuple[int, ...]:
    """As many outputs as the network has layers, evenly spaced from the second to the third-last
    layer, as DFlash's authors choose them."""
    count = target.num_layers
    least, most = _LAYERS
    wanted = min(max(least, count // _TARGET_LAYERS), most, count)
    first, last = min(1, count - 1), max(min(1, count - 1), count - 3)
    if last - first + 1 < wanted:
        return tuple(range(count - wanted, count))
    return tuple(round(first + i * (last - first) / max(1, wanted - 1)) for i in range(wanted))


def settings(request: HeadRequest) -> dict[str, Any]:
    target, block = request.target, request.depth + 1
    layers = capture_layers(target)
    architecture = {
        **decoder_sizes(target),
        "num_hidden_layers": len(layers),
        "target_layer_ids": list(layers),
        "rms_norm_eps": target.norm.eps,
        "rope_theta": target.ropes[0].theta,
    }
    return {
        "dflash_architecture_config": architecture,
        "dflash_offline": True,
        "dflash_block_size": block,
        # As many rows of blocks as rows of text.
        "dflash_num_anchors": max(1, request.window // block),
        "dflash_mask_token_id": request.mask_token,
        "dflash_use_torch_compile": False,
    }


def body_weights(target: ModelConfig) -> int:
    hidden, layers = target.hidden_size, len(capture_layers(target))
    return layers * (hidden * hidden + layer_weights(target, hidden))


def causal_settings(request: HeadRequest) -> dict[str, Any]:
    """Settings of a network whose slots only see those before them (JetSpec)."""
    return {**settings(request), "dflash_draft_attention": "causal"}


def markov_settings(request: HeadRequest) -> dict[str, Any]:
    """Settings of a network with a Markov and a confidence head (DSpark), whose root guesses as
    well; losses are weighted as in the paper."""
    plain = settings(replace(request, depth=request.depth - 1))
    heads = {
        "projector_type": "dspark",
        "markov_rank": _rank(request.target),
        "markov_head_type": "vanilla",
        "use_confidence_head": True,
    }
    own = {"dflash_architecture_config": {**plain["dflash_architecture_config"], **heads}}
    return {**plain, **own, "dflash_confidence_head_alpha": 1.0}


def markov_weights(target: ModelConfig) -> int:
    return body_weights(target) + 2 * target.vocab_size * _rank(target)


def _rank(target: ModelConfig) -> int:
    return min(_RANK, target.hidden_size // 2)


DFLASH_RECIPE = TrainingRecipe(
    algorithm="dflash",
    settings=settings,
    module="dflash_module",
    capture_layers=capture_layers,
    body_weights=body_weights,
    depth=_BLOCK - 1,
    depth_setting=None,
    cuts_vocabulary=False,
    row_multiple=_BLOCK,
    memory_bound=("_compute_loss",),
    loss="cross-entropy with the target's distribution, the mean over the positions of drafts, "
    "weighed by how sure the network was up to there",
)
JETSPEC_RECIPE = replace(DFLASH_RECIPE, settings=causal_settings)
DSPARK_RECIPE = replace(
    DFLASH_RECIPE,
    settings=markov_settings,
    body_weights=markov_weights,
    depth=_BLOCK,
    memory_bound=("_compute_dspark_loss",),
    loss="a tenth of the cross-entropy with the text, nine of the distance from the target's "
    "distribution, and what the confidence head missed, the mean over the positions of drafts",
)
