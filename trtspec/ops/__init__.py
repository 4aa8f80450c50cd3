"""Custom ops: for each its contract, the native op (``torch.ops.trtspec.*``) and a torch reference.

Every op is row-invariant: the bits of a row's result do not depend on the other rows of the call,
on the number of threads, or on whether its keys were laid out as a chain or as tree nodes.
"""

from trtspec.ops.acceptance import accept, accept_reference
from trtspec.ops.attention import paged_tree_attention, paged_tree_attention_reference
from trtspec.ops.causal_conv import causal_conv, causal_conv_reference
from trtspec.ops.gated_delta import gated_delta, gated_delta_reference
from trtspec.ops.head_products import head_products, head_products_reference
from trtspec.ops.kv_compact import kv_compact, kv_compact_reference
from trtspec.ops.latent_attention import latent_tree_attention, latent_tree_attention_reference
from trtspec.ops.linear import linear, linear_reference, pack_linear
from trtspec.ops.lora import lora, lora_reference
from trtspec.ops.mamba2 import mamba2, mamba2_reference
from trtspec.ops.moe import moe, moe_reference
from trtspec.ops.sampling import (
    draft_candidates,
    draft_candidates_reference,
    sample,
    sample_reference,
)

OPS_VERSION = 11
"""Raised when an op's schema or meaning changes; compiled engines carry the one they call."""

__all__ = [
    "OPS_VERSION",
    "accept",
    "accept_reference",
    "causal_conv",
    "causal_conv_reference",
    "draft_candidates",
    "draft_candidates_reference",
    "gated_delta",
    "gated_delta_reference",
    "head_products",
    "head_products_reference",
    "kv_compact",
    "kv_compact_reference",
    "latent_tree_attention",
    "latent_tree_attention_reference",
    "linear",
    "linear_reference",
    "lora",
    "lora_reference",
    "mamba2",
    "mamba2_reference",
    "moe",
    "moe_reference",
    "pack_linear",
    "paged_tree_attention",
    "paged_tree_attention_reference",
    "sample",
    "sample_reference",
]
