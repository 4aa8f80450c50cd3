"""AutoAWQ checkpoints of version GEMM: quant_method ``awq``.

A layer has ``qweight [K, N / 8] i32``, ``qzeros [G, N / 8] i32`` and ``scales [G, N] f16``: ``W[n,
k] = scales[g, n] (q[k, n] - z[g, n])``. A word holds eight neighbouring outputs, the even ones in
its lower half. Scales of the inputs are folded into the layers before.
"""

from __future__ import annotations

from torch import Tensor

from checkpoint_converters.quantised.groups import Groups
from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.packing import WORD_BITS, centred, unpack_words
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Layer, Scheme
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage

METHOD = "awq"
BITS = 4
_IN_WORD = WORD_BITS // BITS
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""The place of each of eight outputs within a word."""


def read_awq(said: Said) -> Scheme:
    """Read the scheme of an AutoAWQ checkpoint.

    Raises:
        CheckpointError: an unsupported number of bits or version.
    """
    said.choice("bits" if said.get("w_bit") is None else "w_bit", (BITS,))
    for name in ("version", "format", "checkpoint_format"):
        said.choice(name, ("gemm", "GEMM"), "gemm")
    size = said.group_size("group_size", "q_group_size")
    roles = ("qzeros", "scales")
    return Scheme(f"AWQ, {BITS} bits", "qweight", roles, lambda module: _read(module, size))


def _read(module: Module, said: int | None) -> Layer:
    k, words = module.part("qweight", ("I32",), 2).shape
    n, count = words * _IN_WORD, module.part("scales", FLOATS, 2).shape[0]
    groups = module.groups("scales", k, count, said)
    module.require_shape("scales", (count, n))
    module.part("qzeros", ("I32",), 2)
    module.require_shape("qzeros", (count, words))
    storage = WeightStorage(BITS, groups.size, scale_type(module.parts["scales"]), zero_points=True)
    return Layer((n, k), storage, lambda: _unpack(module, groups))


def _unpack(module: Module, groups: Groups) -> QuantisedTensor:
    scales = module.finite("scales").t().contiguous()
    zeros = centred(_outputs(module.parts["qzeros"].read()), BITS)
    values = centred(_outputs(module.parts["qweight"].read()), BITS)
    return QuantisedTensor(values, groups.even(scales), groups.even(zeros))


def _outputs(words: Tensor) -> Tensor:
    """Words ``[A, N / 8]`` -> the numbers ``[N, A] u8``, outputs in order."""
    places = unpack_words(words, BITS).view(len(words), -1, _IN_WORD)
    outputs: Tensor = places[..., _PLACES].flatten(1).t()
    return outputs.contiguous()
