"""Quantised layers as the schemes publish them, packed number by number: what a reader unpacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

GROUP = 8


@dataclass(frozen=True)
class Codes:
    """Numbers ``[N, K]`` from 0 on, with scales ``[N, G]`` and zero points ``[N, G]``; and the
    group ``[K]`` of each input feature. The last group may be shorter."""

    numbers: Tensor
    scales: Tensor
    zeros: Tensor
    group: Tensor
    bits: int = 4

    @classmethod
    def random(
        cls, n: int, k: int, bits: int = 4, sorted_inputs: bool = False, size: int = 0
    ) -> Codes:
        noise = torch.Generator().manual_seed(n * 1000 + k)
        size = size or GROUP
        high, groups = 1 << bits, -(-k // size)
        group = torch.arange(k) // size
        return cls(
            torch.randint(high, (n, k), generator=noise),
            (0.05 + torch.rand(n, groups, generator=noise)).half() / high,
            torch.randint(1, high, (n, groups), generator=noise),
            group[torch.randperm(k, generator=noise)] if sorted_inputs else group,
            bits,
        )

    def symmetric(self) -> Codes:
        return replace(self, zeros=torch.full_like(self.zeros, 1 << (self.bits - 1)))

    def of(self, weight: Tensor) -> Codes:
        """In the same groups, the symmetric ones that are nearest to a weight ``[N, K]``."""
        half, in_group = 1 << (self.bits - 1), self.group.expand(weight.shape)
        most = torch.zeros(self.scales.shape).scatter_reduce(1, in_group, weight.abs(), "amax")
        scales = torch.where(most > 0, most / (half - 1), 1.0).half()
        steps = torch.round(weight / scales.float()[:, self.group]).clamp(1 - half, half - 1)
        return replace(self.symmetric(), numbers=steps.long() + half, scales=scales)

    def by_output(self) -> Codes:
        """With one scale for each output."""
        return replace(
            self.symmetric(),
            scales=self.scales[:, :1].contiguous(),
            zeros=torch.full_like(self.zeros[:, :1], 1 << (self.bits - 1)),
            group=torch.zeros_like(self.group),
        )

    @property
    def floats(self) -> Tensor:
        steps = self.numbers - self.zeros[:, self.group]
        return steps.float() * self.scales.float()[:, self.group]


def words(numbers: Tensor, bits: int, places: list[int] | None = None) -> Tensor:
    """Rows of numbers in words of 32 bits, number ``places[i]`` of each word's the i-th from its
    lowest bits on."""
    in_word = 32 // bits
    rows = []
    for row in numbers.tolist():
        packed = []
        for start in range(0, len(row), in_word):
            part = row[start : start + in_word]
            part += [0] * (in_word - len(part))
            word = sum(part[p] << (bits * i) for i, p in enumerate(places or range(in_word)))
            packed.append(word - (1 << 32) if word >> 31 else word)
        rows.append(packed)
    return torch.tensor(rows, dtype=torch.int32)


def gptq(codes: Codes, less: int = 1) -> dict[str, Tensor]:
    return {
        "qweight": words(codes.numbers, codes.bits).t().contiguous(),
        "qzeros": words((codes.zeros - less).t(), codes.bits),
        "scales": codes.scales.t().contiguous(),
        "g_idx": codes.group.int(),
    }


def awq(codes: Codes) -> dict[str, Tensor]:
    places = [0, 2, 4, 6, 1, 3, 5, 7]
    return {
        "qweight": words(codes.numbers.t(), 4, places),
        "qzeros": words(codes.zeros.t(), 4, places),
        "scales": codes.scales.t().contiguous(),
    }


def pack_quantized(codes: Codes, zeros: bool = False, index: bool = False) -> dict[str, Tensor]:
    found = {
        "weight_packed": words(codes.numbers, codes.bits),
        "weight_scale": codes.scales,
        "weight_shape": torch.tensor(codes.numbers.shape),
    }
    if zeros:
        found["weight_zero_point"] = words(codes.zeros.t(), codes.bits).t().contiguous()
    return found | ({"weight_g_idx": codes.group.int()} if index else {})


def int_quantized(codes: Codes) -> dict[str, Tensor]:
    signed = (codes.numbers - (1 << (codes.bits - 1))).to(torch.int8)
    zeros = (codes.zeros - (1 << (codes.bits - 1))).to(torch.int8)
    found = {"weight": signed, "weight_scale": codes.scales}
    return found | ({"weight_zero_point": zeros} if zeros.any() else {})


def modelopt_int8(codes: Codes, inputs: Tensor | None = None) -> dict[str, Tensor]:
    found = {"weight": (codes.numbers - 128).to(torch.int8), "weight_scale": codes.scales[:, 0]}
    found["weight_scale"] = found["weight_scale"].float()
    return found | ({} if inputs is None else {"pre_quant_scale": inputs})


def modelopt_int4(codes: Codes, inputs: Tensor | None = None) -> dict[str, Tensor]:
    nibbles = (codes.numbers - 8) & 15
    packed = (nibbles[::2] | nibbles[1::2] << 4).to(torch.uint8)
    found = {"weight": packed, "weight_scale": codes.scales.float()}
    return found | ({} if inputs is None else {"pre_quant_scale": inputs})


@dataclass(frozen=True)
class Case:
    """A scheme: what config.json says, the codes of a layer, and how they are packed."""

    settings: Callable[[], dict[str, Any]]
    codes: Callable[[int, int], Codes]
    pack: Callable[[Codes], dict[str, Tensor]]
    inputs: bool = False
    """Whether inputs are multiplied by factors: `factors`."""

    @property
    def config(self) -> dict[str, Any]:
        """With the size that groups have now: tests set `GROUP`."""
        return self.settings()

    def layer(self, n: int, k: int) -> tuple[dict[str, Tensor], Tensor]:
        """The tensors of a layer by role, and the weight ``[N, K] f32`` that they stand for."""
        return self._packed(self.codes(n, k))

    def rounded(self, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The same of a weight ``[N, K] f32`` that is rounded, symmetrically."""
        n, k = weight.shape
        return self._packed(self.codes(n, k).of(weight / factors(k) if self.inputs else weight))

    def _packed(self, codes: Codes) -> tuple[dict[str, Tensor], Tensor]:
        if not self.inputs:
            return self.pack(codes), codes.floats
        pack: Any = self.pack
        inputs = factors(codes.numbers.shape[1])
        return pack(codes, inputs), codes.floats * inputs


def factors(k: int) -> Tensor:
    return torch.arange(1, k + 1) / 8


def _gptq(**said: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, **said,
    }  # fmt: skip


def _awq() -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}


def _compressed(form: str, **weights: Any) -> Callable[[], dict[str, Any]]:
    def settings() -> dict[str, Any]:
        said = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, **weights}
        group = {"targets": ["Linear"], "weights": said, "input_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": form,
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        }

    return settings


def _modelopt(algorithm: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"quant_method": "modelopt", "quant_algo": algorithm}


def in_groups(case: Case, size: Callable[[], int]) -> Case:
    """The same in groups of a size that need not divide the inputs of a layer."""

    def settings() -> dict[str, Any]:
        said = case.settings()
        for group in said.get("config_groups", {}).values():
            group["weights"] |= {"strategy": "group", "group_size": size()}
        return said if "config_groups" in said else said | {"group_size": size()}

    def codes(n: int, k: int) -> Codes:
        usual = case.codes(n, k)
        sorts = not torch.equal(usual.group, usual.group.sort()[0])
        found = random(n, k, usual.bits, sorts, size())
        middle = 1 << (usual.bits - 1)
        return found.symmetric() if (usual.zeros == middle).all() else found

    return replace(case, settings=settings, codes=codes)


random = Codes.random
CASES = {
    "gptq": Case(_gptq(), random, gptq),
    "gptq-v2": Case(_gptq(checkpoint_format="gptq_v2"), random, lambda c: gptq(c, 0)),
    "gptq-symmetric": Case(_gptq(sym=True), lambda n, k: random(n, k).symmetric(), gptq),
    "gptq-8": Case(_gptq(bits=8), lambda n, k: random(n, k, 8), gptq),
    "gptq-act": Case(_gptq(desc_act=True), lambda n, k: random(n, k, 4, True), gptq),
    "awq": Case(_awq, random, awq),
    "pack-quantized": Case(
        _compressed("pack-quantized"), lambda n, k: random(n, k).symmetric(), pack_quantized
    ),
    "pack-quantized-zeros": Case(
        _compressed("pack-quantized", symmetric=False), random, lambda c: pack_quantized(c, True)
    ),
    "pack-quantized-8": Case(
        _compressed("pack-quantized", num_bits=8, strategy="channel"),
        lambda n, k: random(n, k, 8).by_output(),
        pack_quantized,
    ),
    "pack-quantized-act": Case(
        _compressed("pack-quantized", actorder="group"),
        lambda n, k: random(n, k, 4, True).symmetric(),
        lambda c: pack_quantized(c, index=True),
    ),
    "int-quantized": Case(
        _compressed("int-quantized", num_bits=8, strategy="channel"),
        lambda n, k: random(n, k, 8).by_output(),
        int_quantized,
    ),
    "int-quantized-zeros": Case(
        _compressed("int-quantized", num_bits=8, symmetric=False),
        lambda n, k: random(n, k, 8),
        int_quantized,
    ),
    "modelopt-int8": Case(
        _modelopt("W8A16"), lambda n, k: random(n, k, 8).by_output(), modelopt_int8
    ),
    "modelopt-smoothquant": Case(
        _modelopt("W8A8_SQ_PER_CHANNEL"),
        lambda n, k: random(n, k, 8).by_output(),
        modelopt_int8,
        inputs=True,
    ),
    "modelopt-awq": Case(
        lambda: _modelopt("W4A16_AWQ")() | {"group_size": GROUP},
        lambda n, k: random(n, k).symmetric(),
        modelopt_int4,
        inputs=True,
    ),
}
SHORT = (
    "gptq", "gptq-8", "gptq-symmetric", "gptq-act", "awq", "pack-quantized-zeros",
    "pack-quantized-act", "int-quantized-zeros", "modelopt-awq",
)  # fmt: skip
CASES |= {f"{name}-short": in_groups(CASES[name], lambda: 2 * GROUP) for name in SHORT}
"""Groups of which the last one may be shorter, and those that a layer's inputs do not fill."""
