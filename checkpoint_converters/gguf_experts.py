"""llama.cpp's tensor names and keys for mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.containers.tensor_sources import Computed
from checkpoint_converters.stacked import Stacked
from trtspec.config.mixers.base import MixerSpec

_B = "blk.{i}."
_M = "layers.{i}.mlp."
_PARTS = ("gate", "up", "down")

EXPERT_NAMES = {
    _M + "router.scores.weight": _B + "ffn_gate_inp.weight",
    _M + "shared_gate.weight": _B + "ffn_gate_inp_shexp.weight",
    **{f"{_M}experts.{{e}}.{part}.weight": f"{_B}ffn_{part}_exps.{{e}}.weight" for part in _PARTS},
    **{f"{_M}shared.{part}.weight": f"{_B}ffn_{part}_shexp.weight" for part in _PARTS},
}
"""Names of one expert's tensors, which do not occur in files: these stack all experts of a
layer."""

STACKED_EXPERTS: Mapping[str, Stacked] = {
    **{f"{_B}ffn_{part}_exps.weight": Stacked((part,)) for part in _PARTS},
    _B + "ffn_gate_up_exps.weight": Stacked(("gate", "up")),
}
"""See `Family.stacked`."""

EXPERT_READS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""See `GgufKeys.reads`."""


def _one_row(whole: TensorHeader, mixer: MixerSpec) -> TensorHeader:
    return Computed.of(whole, (1, whole.shape[-1]), lambda vector: vector)


EXPERT_CHANGES = {_B + "ffn_gate_inp_shexp.weight": _one_row}
"""See `GgufNames.changes`: files hold a shared expert's gate as a vector."""
