"""``head_products``: multiplies each head of the rows by that head's matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op


def head_products(x: Tensor, weight: Tensor) -> Tensor:
    """``out[t, h] = x[t, h] @ weight[h]``.

    Args:
        x: [T, H, K] float32, bfloat16 or float16; arithmetic is in float32, rounded once.
        weight: [H, K, N], dtype of x.
    Returns:
        [T, H, N], dtype of x. The bits of a row depend on its own elements and the weight only.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
    """
    result: Tensor = torch.ops.trtspec.head_products(x, weight)
    return result


def head_products_reference(x: Tensor, weight: Tensor) -> Tensor:
    """``head_products`` in plain torch."""
    return torch.einsum("thk,hkn->thn", x.float(), weight.float()).to(x.dtype)


@torch.library.register_fake("trtspec::head_products")  # type: ignore[untyped-decorator]
def _head_products_fake(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], weight.shape[2]))
