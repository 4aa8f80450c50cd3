"""QuantisedTensor: a quantised weight, as readers of checkpoints hand it to formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class QuantisedTensor:
    """A weight ``[N, K]``: ``W[n, k] = ((values[n, k] - zero_points[n, g]) scales[n, g] +
    minima[n, g]) input_scales[k]``, where g is the group of input k: groups have K / G inputs each,
    one behind the other as ``permutation`` lists them. Of a checkpoint whose last group is shorter
    they are parts of its groups, so that all have one length.

    values: ``[N, K]``, int8, or float8_e4m3fn. scales, minima: ``[N, G]`` floats. zero_points:
    ``[N, G] i8``. input_scales: ``[K]`` floats. permutation: ``[K] i32``; the k-th input that
    groups count is input permutation[k] of the layer, in whose order values and input_scales are.
    """

    values: Tensor
    scales: Tensor
    zero_points: Tensor | None = None
    minima: Tensor | None = None
    input_scales: Tensor | None = None
    permutation: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def floats(self) -> Tensor:
        """The weight ``[N, K] f32`` that it stands for, computed in the order of the formula."""
        order = None if self.permutation is None else self.permutation.long()
        ordered = self.values if order is None else self.values[:, order]
        weight = ordered.float().view(*self.scales.shape, -1)
        if self.zero_points is not None:
            weight -= self.zero_points.float()[..., None]
        weight *= self.scales.float()[..., None]
        if self.minima is not None:
            weight += self.minima.float()[..., None]
        weight = weight.flatten(1)
        if order is not None:
            weight = torch.empty_like(weight).index_copy_(1, order, weight)
        return weight if self.input_scales is None else weight * self.input_scales.float()

    def with_rows(self, of: Callable[[Tensor], Tensor]) -> QuantisedTensor:
        """With the outputs that ``of`` picks out of a tensor's first dimension, in its order."""
        # torch indexes no float8.
        values = of(self.values.view(torch.int8)).view(self.values.dtype)

        def own(part: Tensor | None) -> Tensor | None:
            return None if part is None else of(part)

        return replace(
            self,
            values=values,
            scales=of(self.scales),
            zero_points=own(self.zero_points),
            minima=own(self.minima),
        )


Weight: TypeAlias = Tensor | QuantisedTensor
Weights: TypeAlias = Mapping[str, Weight]
"""A checkpoint's tensors by internal names."""
