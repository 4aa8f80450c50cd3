"""The decoder layer that language models and most drafts are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.layer import LayerSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.attention import Attention, Rows
from trtspec.models.built import attention_of, dense_of
from trtspec.models.mlp import SwiGLU
from trtspec.models.norm import RMSNorm


class DecoderLayer(nn.Module):
    """Norm (unless ``input_norm`` is off), attention, norm, MLP; the residual stream keeps the
    model's dtype.

    Raises ConfigError for a spec that no block runs.
    """

    def __init__(
        self,
        spec: LayerSpec,
        hidden: int,
        dtype: torch.dtype,
        input_norm: bool = True,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        eps = spec.norm.eps
        self.input_norm = RMSNorm(hidden, eps, dtype) if input_norm else None
        self.attn = Attention(attention_of(spec), hidden, dtype, formats=formats)
        self.post_attention_norm = RMSNorm(hidden, eps, dtype)
        self.mlp = SwiGLU(dense_of(spec), hidden, dtype, formats=formats)

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        cos_sin: tuple[Tensor, Tensor],
        k_cache: Tensor,
        v_cache: Tensor,
        kept: Tensor | None = None,
    ) -> Tensor:
        """``x [T, hidden]`` -> ``[T, hidden]``, or the rows ``kept [R] i64`` of that. Of the rows
        that are not kept, only K and V are computed."""
        norm = self.input_norm
        x = self.attn(x, rows, cos_sin, k_cache, v_cache, norm=norm, residual=x, kept=kept)
        out: Tensor = self.mlp(x, self.post_attention_norm)
        return out
