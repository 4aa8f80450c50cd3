"""AutoAWQ checkpoints of version GEMM: quant_method ``awq``.

A layer has ``qweight [K, N / 8] i32``, ``qzeros [K / g, N / 8] i32`` and ``scales [K / g, N] f16``:
``W[n, k] = scales[g, n] (q[k, n] - z[g, n])``. Eight neighbouring outputs lie in a word, those of
even place in its lower half. Scales of the inputs are part of the layers before.
"""

from __future__ import annotations

from torch import Tensor

from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.numbers import Numbers
from checkpoint_converters.quantised.packing import WORD_BITS, centred, unpack_words
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Layer, Scheme
from trtspec.config.storage import WeightStorage

METHOD = "awq"
BITS = 4
_IN_WORD = WORD_BITS // BITS
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in a word each of eight outputs lies."""


def read_awq(said: Said) -> Scheme:
    """Raises:
    CheckpointError: bits or a version that is not read.
    """
    said.choice("bits", (BITS,))
    said.choice("version", ("gemm", "GEMM"), "gemm")
    return Scheme(f"AWQ, {BITS} bits", "qweight", ("qzeros", "scales"), _read)


def _read(module: Module) -> Layer:
    k, words = module.part("qweight", ("I32",), 2).shape
    n, groups = words * _IN_WORD, module.part("scales", FLOATS, 2).shape[0]
    size = module.group_size("scales", k, groups)
    module.require_shape("scales", (groups, n))
    module.part("qzeros", ("I32",), 2)
    module.require_shape("qzeros", (groups, words))
    storage = WeightStorage(BITS, size, scale_type(module.parts["scales"]), zeros=True)
    return Layer((n, k), storage, lambda: _unpack(module))


def _unpack(module: Module) -> Numbers:
    scales = module.finite("scales").t().contiguous()
    zeros = centred(_outputs(module.parts["qzeros"].read()), BITS)
    values = centred(_outputs(module.parts["qweight"].read()), BITS)
    return Numbers(values, scales, zeros)


def _outputs(words: Tensor) -> Tensor:
    """Words ``[A, N / 8]`` -> the numbers ``[N, A] u8``, outputs in their order."""
    places = unpack_words(words, BITS).view(len(words), -1, _IN_WORD)
    outputs: Tensor = places[..., _PLACES].flatten(1).t()
    return outputs.contiguous()
