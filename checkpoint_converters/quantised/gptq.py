"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them: quant_method ``gptq``.

A layer has ``qweight [K bits / 32, N] i32`` (numbers of an output below each other, lowest bits
first), ``qzeros [G, N bits / 32] i32`` (side by side), ``scales [G, N] f16`` and ``g_idx [K] i32``,
the group of each input feature, which rises in steps unless ``desc_act`` sorted the features:
``W[n, k] = scales[g, n] (q[k, n] - z[g, n])`` with ``g = g_idx[k]``. ``checkpoint_format`` ``gptq``
holds ``z - 1``, ``gptq_v2`` holds z.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.numbers import Numbers
from checkpoint_converters.quantised.packing import WORD_BITS, centred, unpack_words
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Layer, Scheme
from trtspec.config.storage import WeightStorage

METHOD = "gptq"
BITS = (4, 8)
_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""What is to be added to stored zeros, by checkpoint_format."""


def read_gptq(said: Said) -> Scheme:
    """Raises:
    CheckpointError: bits, format or a key that is not read.
    """
    bits = said.choice("bits", BITS)
    form = said.choice("checkpoint_format", tuple(_FORMATS), "gptq")
    said.refuse_set("dynamic", "layers that differ from the others")
    settings = _Settings(
        bits,
        _FORMATS[form],
        bool(said.get("sym", True)),
        bool(said.get("desc_act", False)),
    )
    return Scheme(f"GPTQ, {bits} bits", "qweight", ("qzeros", "scales", "g_idx"), settings.read)


@dataclass(frozen=True)
class _Settings:
    bits: int
    added: int
    symmetric: bool
    sorted: bool

    def read(self, module: Module) -> Layer:
        in_word = WORD_BITS // self.bits
        words, n = module.part("qweight", ("I32",), 2).shape
        k, groups = words * in_word, module.part("scales", FLOATS, 2).shape[0]
        size = module.group_size("scales", k, groups)
        module.require_shape("scales", (groups, n))
        module.part("qzeros", ("I32",), 2)
        module.require_shape("qzeros", (groups, n // in_word))
        if self.sorted or module.has("g_idx"):
            module.part("g_idx", ("I32", "I64"), 1)
            module.require_shape("g_idx", (k,))
        ordered = self.sorted and groups > 1
        storage = WeightStorage(
            self.bits,
            size,
            scale_type(module.parts["scales"]),
            zeros=not self.symmetric,
            permuted=ordered,
        )
        return Layer((n, k), storage, lambda: self._unpack(module, groups, ordered))

    def _unpack(self, module: Module, groups: int, ordered: bool) -> Numbers:
        words = module.parts["qweight"].read()
        values = centred(unpack_words(words.t(), self.bits), self.bits)
        scales = module.finite("scales").t().contiguous()
        stored = unpack_words(module.parts["qzeros"].read(), self.bits).t()
        middle = 1 << (self.bits - 1)
        zeros = stored.to(torch.int16) + self.added - middle
        if self.symmetric and zeros.any():
            wrong = int(zeros[zeros != 0][0]) + middle
            raise module.refuse("qzeros", f"a zero point of {wrong}", f"have {middle}, as sym says")
        if (zeros > torch.iinfo(torch.int8).max).any():
            raise module.refuse("qzeros", f"a zero point of {2 * middle}", "be less")
        order = self._order(module, groups, ordered)
        kept = None if self.symmetric else zeros.to(torch.int8).contiguous()
        return Numbers(values, scales, kept, permutation=order)

    def _order(self, module: Module, groups: int, ordered: bool) -> Tensor | None:
        if not module.has("g_idx"):
            return None
        order = module.order("g_idx", groups)
        if order is not None and not ordered:
            raise module.refuse("g_idx", "input features in no order", "rise, as desc_act says")
        if order is None and ordered:
            return torch.arange(module.parts["g_idx"].shape[0], dtype=torch.int32)
        return order
