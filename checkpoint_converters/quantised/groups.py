"""Groups: the input features of a layer that share scales."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor


def even_runs(inputs: int, size: int) -> int:
    """The fewest equal runs of inputs that each lie in one group of ``size`` inputs: the groups
    themselves, unless the last one is shorter. ``size`` 0: one group."""
    return inputs // gcd(inputs, size)


@dataclass(frozen=True)
class Groups:
    """Groups of ``size`` out of ``inputs`` features; the last one may be shorter. 0: a single
    group."""

    inputs: int
    size: int

    @classmethod
    def of(cls, inputs: int, size: int) -> Groups:
        """Groups of a size that may exceed the number of inputs."""
        return cls(inputs, size if 0 < size < inputs else 0)

    @property
    def count(self) -> int:
        return -(-self.inputs // self.size) if self.size else 1

    @property
    def lengths(self) -> Tensor:
        """Input features of each group, ``[G] i64``."""
        found = torch.full((self.count,), self.size or self.inputs)
        found[-1] += self.inputs - int(found.sum())
        return found

    def even(self, values: Tensor) -> Tensor:
        """Values ``[N, G]`` of the groups, spread over `even_runs`, as a `QuantisedTensor` has
        them."""
        runs = even_runs(self.inputs, self.size)
        if runs == self.count:
            return values
        first = torch.arange(runs) * (self.inputs // runs)
        return values[:, first // self.size]
