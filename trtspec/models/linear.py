"""Linear: a linear layer with weights in a `WeightFormat`.

As in all layers of the models, weights are buffers, not parameters: engines only infer, and a
builder treats them as constants. New layers hold uninitialised memory until weights are loaded. On
CPUs all layers are row-invariant: other rows of a call never change a row's bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trtspec.formats.base import Rounding, WeightFormat
from trtspec.formats.stored import StoredWeight
from trtspec.models.lora import Lora
from trtspec.models.norm import Norm, RMSNorm


class Linear(nn.Module):
    """A linear layer, or several fused along their outputs.

    Its buffers are those of the format, and ``bias [N]`` where it has one. ``rounding`` says how
    far the format changed the weights, once they are loaded. ``lora``: room for adapters beside it,
    see `trtspec.models.adapters`.
    """

    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        dtype: torch.dtype,
        bias: bool = False,
        *,
        format: WeightFormat,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        self.format = format
        self.rounding = Rounding()
        self.lora: Lora | None = None
        storage = format.storage(out_features, in_features, dtype)
        self._weight_names = tuple(storage)
        for name, spec in storage.items():
            self.register_buffer(name, torch.empty(spec.shape, dtype=spec.dtype))
        self.register_buffer("bias", torch.empty(out_features, dtype=dtype) if bias else None)

    def forward(
        self,
        x: Tensor,
        out_dtype: torch.dtype | None = None,
        *,
        norm: Norm | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """``x [T, K]`` -> ``[T, N]`` in ``out_dtype`` (x's dtype if None), rounded once.

        What stands around the layer runs in the same op, where the op has it. Before the product:
        ``norm`` of x, or with ``gated`` the `swiglu` of ``x [T, 2K]``. Behind it: the sum with
        ``residual [T, N]`` of the same dtype. ``adapters [T] i32``: those of the rows, where there
        is room for some.
        """
        taken = None
        if isinstance(norm, RMSNorm) and norm.in_products:
            taken = norm
        elif norm is not None:
            x = norm(x)
        if adapters is not None and self.lora is not None:
            around = {"norm": taken, "gated": gated, "residual": residual}
            residual = self.lora(x, adapters, out_dtype, **around)
        return self.format.product(
            self.weights,
            x,
            self.bias,
            self.out_features,
            out_dtype,
            norm=taken,
            gated=gated,
            residual=residual,
        )

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The buffers of the format, by name."""
        return {name: getattr(self, name) for name in self._weight_names}

    def gather_rows(self, ids: Tensor) -> Tensor:
        """Rows ``W[ids]`` as ``[T, K]``, for a model whose head is also its embedding."""
        return self.format.rows(self.weights, ids, self.in_features, self.dtype)

    def load(self, weights: Sequence[StoredWeight], biases: Sequence[Tensor] = ()) -> None:
        """Load from weights ``[n_i, K]`` (sum of n_i = N) in output order, and their biases.

        Raises:
            CheckpointError: values that the format cannot hold.
        """
        self.rounding = self.format.load(weights, self.weights)
        if self.bias is not None:
            self.bias.copy_(torch.cat(list(biases)))
