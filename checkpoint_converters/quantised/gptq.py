"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them: quant_method ``gptq``.

A layer has ``qweight [K bits / 32, N] i32`` (packed along K, lowest bits first), ``qzeros [G, N
bits / 32] i32`` (packed along N), ``scales [G, N] f16`` and ``g_idx [K] i32``, the group of each
input feature: ``W[n, k] = scales[g, n] (q[k, n] - z[g, n])`` with ``g = g_idx[k]``. The groups
ascend unless ``desc_act`` sorted the features; if they ascend (``static_groups``, or one group),
``g_idx`` may be absent.

Format ``gptq`` stores ``z - 1``, ``gptq_v2`` stores z. Writers name it in ``checkpoint_format``,
``format`` or both. Some that say ``gptq`` store z, which is recognisable if all z are the midpoint
(``sym``); ``qzeros`` may be absent then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.quantised.groups import Groups
from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.packing import WORD_BITS, centred, unpack_words
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Layer, Scheme
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage

METHOD = "gptq"
BITS = (4, 8)
_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""What to add to stored zero points, by format."""
_EXCLUDED = "-:"
_FORMAT_KEYS = ("checkpoint_format", "format")


def read_gptq(said: Said) -> Scheme:
    """Read the scheme of a GPTQ checkpoint.

    Raises:
        CheckpointError: unsupported bits, format or key.
    """
    bits = said.choice("bits", BITS)
    for pattern in said.get("dynamic") or {}:
        if not pattern.startswith(_EXCLUDED):
            raise said.refuse(
                f"dynamic {pattern!r} (layers that differ from the others) is not supported; "
                f"supported: layers that are left out, {_EXCLUDED!r} before their names"
            )
    said.refuse_set("is_marlin_format", "another order of the numbers")
    settings = _Settings(
        bits,
        said.group_size("group_size"),
        _FORMATS[_format(said)],
        bool(said.get("sym", True)),
        bool(said.get("desc_act", False)),
        bool(said.get("static_groups", False)),
    )
    return Scheme(f"GPTQ, {bits} bits", "qweight", ("qzeros", "scales", "g_idx"), settings.read)


def _format(said: Said) -> str:
    """The format of zero points; the first one by default."""
    meta = said.get("meta")
    given = [said, Said(said.file, f"{said.key}.meta", meta if isinstance(meta, dict) else {})]
    found = {
        f"{each.key}.{key}": each.choice(key, tuple(_FORMATS))
        for each in given
        for key in _FORMAT_KEYS
        if each.get(key) is not None
    }
    if len(set(found.values())) > 1:
        listed = " and ".join(f"{key} {form!r}" for key, form in found.items())
        raise said.refuse(f"says both {listed}, by which zero points differ; leave one of them")
    return next(iter(found.values()), "gptq")


@dataclass(frozen=True)
class _Settings:
    bits: int
    group_size: int | None
    added: int
    symmetric: bool
    sorted: bool
    static: bool
    """Whether groups were formed before features were sorted, so that they ascend; ``g_idx`` may be
    absent."""

    def read(self, module: Module) -> Layer:
        in_word = WORD_BITS // self.bits
        words, n = module.part("qweight", ("I32",), 2).shape
        k, count = words * in_word, module.part("scales", FLOATS, 2).shape[0]
        groups = module.groups("scales", k, count, self.group_size)
        module.require_shape("scales", (count, n))
        if not self.symmetric or module.has("qzeros"):
            module.part("qzeros", ("I32",), 2)
            module.require_shape("qzeros", (count, n // in_word))
        ordered = self.sorted and count > 1 and (module.has("g_idx") or not self.static)
        if ordered or module.has("g_idx"):
            asked_by = "desc_act without static_groups"
            module.part("g_idx", ("I32", "I64"), 1, asked_by)
            module.require_shape("g_idx", (k,))
        storage = WeightStorage(
            self.bits,
            groups.size,
            scale_type(module.parts["scales"]),
            zero_points=not self.symmetric,
            permuted=ordered,
        )
        return Layer((n, k), storage, lambda: self._unpack(module, groups, ordered))

    def _unpack(self, module: Module, groups: Groups, ordered: bool) -> QuantisedTensor:
        words = module.parts["qweight"].read()
        values = centred(unpack_words(words.t(), self.bits), self.bits)
        scales = module.finite("scales").t().contiguous()
        zeros = self._zeros(module)
        kept = None if zeros is None else groups.even(zeros)
        order = self._order(module, groups, ordered)
        return QuantisedTensor(values, groups.even(scales), kept, permutation=order)

    def _zeros(self, module: Module) -> Tensor | None:
        """Zero points ``[N, G] i8`` minus the midpoint; None if all are the midpoint."""
        if not module.has("qzeros"):
            return None
        stored = unpack_words(module.parts["qzeros"].read(), self.bits).t().to(torch.int16)
        middle = 1 << (self.bits - 1)
        zeros = stored + self.added - middle
        if self.symmetric:
            if zeros.any() and (stored != middle).any():
                wrong, wanted = int(zeros[zeros != 0][0]) + middle, f"have {middle}, as sym says"
                raise module.refuse("qzeros", f"a zero point of {wrong}", wanted)
            return None
        if (zeros > torch.iinfo(torch.int8).max).any():
            raise module.refuse("qzeros", f"a zero point of {2 * middle}", "be less")
        return zeros.to(torch.int8).contiguous()

    def _order(self, module: Module, groups: Groups, ordered: bool) -> Tensor | None:
        if not module.has("g_idx"):
            return None
        order = module.order("g_idx", groups)
        if order is not None and not ordered:
            raise module.refuse("g_idx", "input features in no order", "rise, as desc_act says")
        if order is None and ordered:
            return torch.arange(module.parts["g_idx"].shape[0], dtype=torch.int32)
        return order
