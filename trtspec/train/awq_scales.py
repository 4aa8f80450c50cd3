"""Input scales with which weights lose least in 4 bits, found by NVIDIA ModelOpt's AWQ."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.builder.accuracy import whole_texts
from trtspec.builder.checkpoints import Checkpoint
from trtspec.formats.registry import IN_ROWS
from trtspec.models.causal_lm import CausalLM
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm
from trtspec.ops.linear import swiglu
from trtspec.optional import import_optional
from trtspec.train.products import product_dtype

_PURPOSE, _EXTRA = "--quantize awq", "'trtspec[train]'"
_WEIGHTS = "*weight_quantizer"


def require_modelopt() -> Any:
    """ModelOpt's quantisation package; ConfigError naming the extra if it is not installed."""
    return import_optional("modelopt.torch.quantization", _PURPOSE, _EXTRA)


class Searched(nn.Module):
    """A float `Linear` whose product is a module that ModelOpt knows."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        n, k = linear.out_features, linear.in_features
        self.inner = nn.Linear(k, n, linear.bias is not None, device="meta")
        self.inner.weight = nn.Parameter(linear.weights["weight"], requires_grad=False)
        if linear.bias is not None:
            self.inner.bias = nn.Parameter(linear.bias, requires_grad=False)

    def forward(
        self,
        x: Tensor,
        out_dtype: torch.dtype | None = None,
        *,
        norm: Norm | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        """As `Linear.forward`."""
        x = x if norm is None else norm(x)
        y: Tensor = self.inner(swiglu(x) if gated else x)
        y = y if out_dtype is None else y.to(out_dtype)
        return y if residual is None else residual + y


@torch.no_grad()
def search_scales(
    checkpoint: Checkpoint, windows: Sequence[Tensor], group_size: int
) -> dict[str, Tensor]:
    """For each linear layer of the decoder, by name (``layers.0.attn.qkv``), the scales ``[K] f32``
    of its inputs with which its outputs over ``windows`` change least when weights are rounded to 4
    bits in groups of ``group_size`` inputs. The weights are to be divided by them.

    Raises:
        ConfigError: ModelOpt is not installed.
    """
    quantization = require_modelopt()
    named = checkpoint.config.dtype
    dtype = product_dtype("cpu") if named == "bfloat16" else torch.float32
    config = checkpoint.config.for_length(checkpoint.config.usual_sequence)
    model = CausalLM(config, dtype, formats=IN_ROWS)
    model.load_weights(checkpoint)
    searched: dict[str, Searched] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear) and name.startswith("layers."):
            parent, _, own = name.rpartition(".")
            searched[name] = Searched(module)
            setattr(model.get_submodule(parent), own, searched[name])
    config = deepcopy(quantization.INT4_AWQ_CFG)
    for entry in config["quant_cfg"]:
        if entry.get("quantizer_name") == _WEIGHTS and "cfg" in entry:
            entry["cfg"]["block_sizes"] = {-1: group_size, "type": "static"}

    def read(of: CausalLM) -> None:
        # All at once: each call rounds the weights anew, in every way that is tried.
        of.trunk(torch.cat(list(windows)), *whole_texts(of, [len(each) for each in windows]))

    with redirect_stdout(io.StringIO()):  # it tells what it inserts
        quantization.quantize(model, config, read)
    found = {}
    for name, module in searched.items():
        quantizer: Any = module.inner.input_quantizer  # ModelOpt's
        found[name] = quantizer.pre_quant_scale.float().view(-1)
    return found
