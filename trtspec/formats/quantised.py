"""Weights of 4 or 8 bits, integers or floats, with a scale for each group of inputs, which the ops
for CPUs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch import Tensor

from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage
from trtspec.errors import CheckpointError, ConfigError
from trtspec.formats.base import (
    BufferSpec,
    Mixture,
    Norm,
    Place,
    Rounding,
    WeightFormat,
    op_arguments,
)
from trtspec.formats.stored import StoredWeight
from trtspec.ops.linear_quantised import (
    GROUP_SIZES,
    OUTPUTS,
    QuantisedWeights,
    dequantise,
    dequantised_rows,
    inputs_per_block,
    linear_quantised,
    num_groups,
    pack_groups,
    pack_values,
    round_weights,
    spread,
)
from trtspec.ops.moe import Coding

ROUNDED_INPUTS = WeightStorage(8).name
"""The ``activation_dtype`` that makes products round their inputs."""
_OF_INPUTS = {
    "input_scales": "the factors of their inputs",
    "permutation": "the orders of their inputs (act-order)",
}
_PATTERNS = 16  # of 4 bits
_NAN = 0x7F  # of FP8, but for its sign
_ROWS_AT_ONCE = 4096  # quantised together: a head's floats are not all copied several times


@dataclass(frozen=True)
class QuantisedFormat(WeightFormat):
    """Buffers named as the fields of `QuantisedWeights`, for `trtspec.ops.linear_quantised`.

    scheme: the kind of values and their bits (4 or 8), groups, and which buffers there are beside
    ``packed`` and ``scales``. input_bits: 8 or 16, to which products round inputs and multiply
    integers; 0: they multiply floats, as they do with FP8.

    Quantised weights are loaded as they are. Floats are rounded symmetrically, to integers only.
    """

    scheme: WeightStorage
    input_bits: int = 8

    is_rounded = True
    network_dtype = "float32"
    """Reading the weights is what a pass takes its time for. Float32 between products costs next to
    nothing, and 16 bits there would lose accuracy on top of what rounded inputs lose."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.scheme.name

    @property
    def traits(self) -> tuple[str, ...]:  # type: ignore[override]
        scheme = self.scheme
        told = {
            f"{scheme.scale_dtype} scales": True,
            "zero points": scheme.zero_points,
            "minima": scheme.minima,
            "factors of the inputs": scheme.input_scales,
            "inputs in an order of their own (act-order)": scheme.permuted,
        }
        return tuple(trait for trait, has in told.items() if has)

    @property
    def group_size(self) -> int:  # type: ignore[override]
        return self.scheme.group_size

    def in_groups(self, size: int) -> QuantisedFormat:
        return replace(self, scheme=replace(self.scheme, group_size=size))

    @property
    def arranges_inputs(self) -> bool:
        return self.scheme.input_scales or self.scheme.permuted

    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        scheme, panels = self.scheme, -(-n // OUTPUTS)
        scale_dtype: torch.dtype = getattr(torch, scheme.scale_dtype)
        groups = (panels, num_groups(k, scheme.group_size), OUTPUTS)
        wanted = {
            "scales": (True, BufferSpec(groups, scale_dtype)),
            "zeros": (scheme.zero_points, BufferSpec(groups, torch.int8)),
            "offsets": (scheme.minima, BufferSpec(groups, scale_dtype)),
            "input_scales": (scheme.input_scales, BufferSpec((k,), dtype)),
            "permutation": (scheme.permuted, BufferSpec((k,), torch.int32)),
            "table": (scheme.table is not None, BufferSpec((_PATTERNS,), torch.int8)),
            "packed": (True, BufferSpec(self._packed_shape(n, k), torch.uint8)),
        }
        return {name: spec for name, (is_there, spec) in wanted.items() if is_there}

    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        rounding = Rounding()
        for name, neutral in (("input_scales", torch.ones), ("permutation", torch.arange)):
            self._load_inputs(name, neutral(parts[0].shape[1]), parts, buffers)
        values: list[Tensor] = []
        groups: dict[str, list[Tensor]] = {"scales": [], "zeros": [], "offsets": []}
        for part in parts:
            part.require_finite(f"quantised to {self.name}")
            if isinstance(part.weight, QuantisedTensor):
                rounding += Rounding(0.0, _squares(part.floats()))
                self._take(part, part.weight, values, groups)
            else:
                rounding += self._round(part.name, part.weight, buffers, values, groups)
        permutation = buffers.get("permutation", slice(None))
        joined = torch.cat(values)[:, permutation]
        buffers["packed"].copy_(self._pack(joined))
        if self.scheme.table is not None:
            buffers["table"].copy_(torch.tensor(self.scheme.table))
        for name, parts_of_it in groups.items():
            if name in buffers:
                buffers[name].copy_(self._pack_groups(torch.cat(parts_of_it)))
        return rounding

    def _round(
        self,
        name: str,
        weight: Tensor,
        buffers: Mapping[str, Tensor],
        values: list[Tensor],
        groups: dict[str, list[Tensor]],
    ) -> Rounding:
        """Round floats, and append them to ``values``, and their scales to ``groups``."""
        assert self.scheme.table is None and not self.scheme.is_float8, "those are read, not made"
        rounding = Rounding()
        bits, size = self.scheme.bits, self.scheme.group_size
        permutation = buffers.get("permutation")
        for rows in torch.split(weight, _ROWS_AT_ONCE):
            wide = rows.float()
            if "input_scales" in buffers:
                wide = wide / buffers["input_scales"].float()
            ordered = wide if permutation is None else wide[:, permutation]
            found, scales = round_weights(ordered, bits, size, buffers["scales"].dtype)
            if not torch.isfinite(scales).all():
                raise CheckpointError(
                    f"the checkpoint's tensor {name} has a value of {float(wide.abs().max()):.3g}, "
                    f"whose scale {self.scheme.scale_dtype} does not hold; keep it in floats"
                )
            change = found.float() * spread(scales.float(), found.shape[1], size) - ordered
            rounding += Rounding(_squares(change), _squares(ordered))
            if permutation is not None:
                found = torch.empty_like(found).index_copy_(1, permutation.long(), found)
            values.append(found)
            groups["scales"].append(scales)
            for beside in ("zeros", "offsets"):
                groups[beside].append(torch.zeros_like(scales))
        return rounding

    def _take(
        self,
        part: StoredWeight,
        found: QuantisedTensor,
        values: list[Tensor],
        groups: dict[str, list[Tensor]],
    ) -> None:
        """Append a checkpoint's values to ``values``, and their scales and so on to ``groups``."""
        self._require_values(part.name, found.values)
        size = self.scheme.group_size
        scales = part.grouped(found.scales, size)
        none = torch.zeros_like(scales)
        zeros = none if found.zero_points is None else part.grouped(found.zero_points, size)
        minima = none if found.minima is None else part.grouped(found.minima, size)
        if found.zero_points is not None and self.scheme.minima:
            minima = minima - zeros.float() * scales.float()
        elif found.zero_points is not None and not self.scheme.zero_points:
            self._unsaid(part, "zero points")
        if found.minima is not None and not self.scheme.minima:
            self._unsaid(part, "minima")
        values.append(found.values.view(torch.int8))
        groups["scales"].append(scales)
        groups["zeros"].append(zeros)
        groups["offsets"].append(minima)

    def _require_values(self, name: str, values: Tensor) -> None:
        """CheckpointError for values that the format does not have."""
        assert (values.dtype == torch.float8_e4m3fn) == self.scheme.is_float8
        if self.scheme.is_float8:
            wrong = values.view(torch.uint8) & _NAN == _NAN
            told = f"{int(wrong.sum())} values that are NaN; {self.name} has none"
        elif self.scheme.table is not None:
            wrong = self._places[values.int()] == _PATTERNS
            told = f"values that no {self.name} stands for"
        else:
            low, high = -(1 << self.scheme.bits - 1), (1 << self.scheme.bits - 1) - 1
            wrong = (values < low) | (values > high)
            least, most = values.aminmax() if values.numel() else (low, high)
            told = f"values from {int(least)} to {int(most)}; {self.name} holds {low} to {high}"
        if wrong.any():
            raise CheckpointError(f"the checkpoint's tensor {name} has {told}")

    def _packed_shape(self, n: int, k: int) -> tuple[int, ...]:
        return (-(-n // OUTPUTS), -(-k // inputs_per_block(self.scheme.bits)), OUTPUTS, 4)

    def _pack(self, values: Tensor) -> Tensor:
        """``packed`` of values ``[N, K] i8`` (FP8: of their bytes)."""
        return pack_values(self._patterns(values), self.scheme.bits)

    def _pack_groups(self, values: Tensor) -> Tensor:
        """Scales, zeros or offsets of values ``[N, G]``."""
        return pack_groups(values)

    def _patterns(self, values: Tensor) -> Tensor:
        """The bit patterns of values ``[N, K] i8`` (FP8: of their bytes), for `pack_values`."""
        if self.scheme.table is not None:
            return self._places[values.int()] - _PATTERNS // 2
        return values ^ -128 if self.scheme.is_float8 else values

    @property
    def _places(self) -> Tensor:
        """The first place in the table of each value modulo 256; 16 if it is not there."""
        places = torch.full((256,), _PATTERNS, dtype=torch.int8)
        for place in reversed(range(_PATTERNS)):
            places[(self.scheme.table or ())[place]] = place
        return places

    def _load_inputs(
        self,
        name: str,
        neutral: Tensor,
        parts: Sequence[StoredWeight],
        buffers: Mapping[str, Tensor],
    ) -> None:
        """Fill a buffer that concerns inputs, which the parts of a fused layer share."""
        quantised = {part.name: part for part in parts if part.quantised is not None}
        found = [getattr(part.quantised, name) for part in quantised.values()]
        given = [neutral if each is None else each for each in found]
        for source, values in zip(quantised, given, strict=True):
            if not torch.equal(values, given[0]):
                raise CheckpointError(
                    f"the checkpoint's tensors {next(iter(quantised))} and {source} are one "
                    f"layer's, but {_OF_INPUTS[name]} differ; build with floats of them "
                    "(weight_dtype bfloat16)"
                )
        if name in buffers:
            buffers[name].copy_(given[0] if given else neutral)
        elif given and not torch.equal(given[0], neutral.to(given[0].dtype)):
            self._unsaid(next(iter(quantised.values())), name)

    @staticmethod
    def _unsaid(part: StoredWeight, what: str) -> NoReturn:
        raise CheckpointError(
            f"the checkpoint's tensor {part.name} has {what}, which its storage does not say"
        )

    def product(
        self,
        buffers: Mapping[str, Tensor],
        x: Tensor,
        bias: Tensor | None,
        n: int,
        out_dtype: torch.dtype | None,
        *,
        norm: Norm | None,
        gated: bool,
        residual: Tensor | None,
    ) -> Tensor:
        return linear_quantised(
            x,
            self._weights(buffers),
            bias,
            n,
            self.scheme.bits,
            self.scheme.group_size,
            self.input_bits,
            out_dtype,
            **op_arguments(norm, gated, residual),
        )

    def mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        scheme = self.scheme
        if scheme.input_scales or scheme.permuted:
            raise ConfigError(
                f"experts in {self.name} with input scales or permuted inputs (act-order) have no "
                "kernel; build with floats of them (weight_dtype bfloat16)"
            )
        coding = Coding(scheme.bits, scheme.group_size, self.input_bits, scheme.is_float8)
        return experts.by_op(coding, x, chosen, weights, residual)

    def reads_chosen_experts(self, device: str) -> bool:
        return True

    def rows(
        self, buffers: Mapping[str, Tensor], ids: Tensor, k: int, dtype: torch.dtype
    ) -> Tensor:
        weights, scheme = self._weights(buffers), self.scheme
        return dequantised_rows(weights, scheme.bits, scheme.group_size, ids, k).to(dtype)

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        weights = self._weights(buffers)
        return dequantise(weights, self.scheme.bits, self.scheme.group_size, n, k)

    def _weights(self, buffers: Mapping[str, Tensor]) -> QuantisedWeights:
        return QuantisedWeights(**buffers, e4m3=self.scheme.is_float8)

    def bytes(self, n: int, k: int, dtype: torch.dtype) -> int:
        scheme = self.scheme
        scale_dtype: torch.dtype = getattr(torch, scheme.scale_dtype)
        a_group = scale_dtype.itemsize * (1 + scheme.minima) + scheme.zero_points
        inputs = k * (dtype.itemsize * scheme.input_scales + 4 * scheme.permuted)
        inputs += 0 if scheme.table is None else _PATTERNS
        return n * k * scheme.bits // 8 + n * num_groups(k, scheme.group_size) * a_group + inputs

    def unsupported(self, place: Place) -> str | None:
        if not place.runs_ops:
            return f"on backend {place.backend!r}, but on {' and '.join(place.with_ops)}"
        if place.device != "cpu":
            return f"on device {place.device!r} without few_row_products"
        return None

    def describe(self, dtype: str) -> str:
        size = self.scheme.group_size
        scale = f"{size} input features" if size else "output"
        inputs = f", inputs rounded to int{self.input_bits}" if self.input_bits else ""
        return f"{dtype} with {self.name} weights (a scale for each {scale}){inputs}"


def _squares(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2


def kept_as(scheme: WeightStorage, input_bits: int) -> QuantisedFormat:
    """The format that keeps a checkpoint's weights of a scheme. Groups too large for any kernel are
    divided into several.

    Raises:
        ConfigError: no kernel reads such weights.
    """
    input_bits = 0 if scheme.is_float8 else input_bits
    if not scheme.group_size:
        return QuantisedFormat(scheme, input_bits)
    sizes = [size for size in GROUP_SIZES if size and scheme.group_size % size == 0]
    if not sizes:
        raise ConfigError(
            f"the checkpoint's {scheme.name} weights have a scale for each {scheme.group_size} "
            f"input features; kept are groups that {', '.join(map(str, GROUP_SIZES[1:]))} divide: "
            "keep them in floats (weight_dtype bfloat16)"
        )
    return QuantisedFormat(replace(scheme, group_size=max(sizes)), input_bits)
