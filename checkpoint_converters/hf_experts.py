"""Hugging Face's mixtures of experts: the config keys and tensor names that most of them share."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, read_activation
from checkpoint_converters.names import NameMap
from checkpoint_converters.stacked import Stacked
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import Layers, LayerSpec

_M = "model.layers.{i}.mlp."
_OURS = "layers.{i}.mlp."
_PARTS = ("gate", "up", "down")

STACKED = {
    _M + "experts.gate_up_proj": Stacked(("gate", "up")),
    _M + "experts.down_proj": Stacked(("down",)),
}
"""How transformers stacks experts when it does not save them one by one."""


def expert_names(
    router: str, experts: tuple[str, str, str], shared: str | None = None
) -> dict[str, str]:
    """Tensor names of a layer's mixture, by internal names. router: its matrix. experts: gate, up
    and down of one expert, with ``{e}`` for its number. shared: the prefix of the shared expert's
    ``gate_proj``, ``up_proj`` and ``down_proj``."""
    found = {_OURS + "router.scores.weight": router}
    for part, theirs in zip(_PARTS, experts, strict=True):
        found[f"{_OURS}experts.{{e}}.{part}.weight"] = theirs
        if shared is not None:
            found[f"{_OURS}shared.{part}.weight"] = f"{shared}{part}_proj.weight"
    return found


def _each(name: str) -> str:
    return f"{_M}experts.{{e}}.{name}.weight"


PROJECTIONS = (_each("gate_proj"), _each("up_proj"), _each("down_proj"))
"""Names in most families."""


def hf_mixture(shared: str | None = None) -> NameMap:
    """`HF_DECODER` with a mixture under ``mlp``; the shared expert is under ``mlp.{shared}.``."""
    place = None if shared is None else f"{_M}{shared}."
    return HF_DECODER.renamed(expert_names(_M + "gate.weight", PROJECTIONS, place))


def read_experts(
    hf: HfConfig, count: str, inner: str, activation: str | None = None, **fields: Any
) -> ExpertsSpec:
    """The mixture in config.json. Keys ``count`` (or what transformers 5 writes instead) and
    ``inner`` give the number and width of experts. ``activation``: for families whose experts have
    one that no key names. Raises CheckpointError for an unsupported activation, ConfigError for
    impossible values."""
    return ExpertsSpec(
        num_experts=hf.get("num_local_experts", hf.get("num_experts")) or hf.require(count),
        top_k=hf.require("num_experts_per_tok"),
        intermediate_size=hf.require(inner),
        activation=activation or read_activation(hf),
        **fields,
    )


def with_experts(layers: Layers, experts: ExpertsSpec, marks: list[bool]) -> Layers:
    """The layers with this mixture in place of the dense part in those that are marked."""
    return Layers.of(
        LayerSpec(
            layer.mixer,
            experts if mark else layer.ffn,
            layer.norm,
            layer.norm_place,
            layer.parallel,
            layer.residual_scale,
        )
        for layer, mark in zip(layers, marks, strict=True)
    )
