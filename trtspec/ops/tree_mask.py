"""``tree_mask``: turns packed ancestors and context lengths into the mask of a slot cache."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.ops import cuda_ops
from trtspec.ops.cuda_params import MaskElement, TreeMaskParams

_KINDS = {
    torch.bool: MaskElement.boolean,
    torch.float32: MaskElement.float32,
    torch.bfloat16: MaskElement.bfloat16,
    torch.float16: MaskElement.float16,
}


def tree_mask(
    positions: Tensor,
    slot_mapping: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    is_tree: Tensor,
    tree_mask: Tensor,
    *,
    width: int,
    length: int,
    sliding_window: int = 0,
    dtype: torch.dtype = torch.bool,
) -> Tensor:
    """What each row sees of its request's ``length`` cache positions: ``[B, 1, width, length]``,
    bool (True: seen) or of a float dtype (0: seen, -inf: hidden).

    The rule is that of `paged_tree_attention`. A row that sees nothing (padding, and one that a
    request does not have) sees position 0, so that a softmax over it is finite.

    Args:
        positions, slot_mapping: int64 [T]; the positions count with a sliding window only, a slot
            of -1 marks padding.
        query_start: int32 [B + 1]; context_lens: int32 [B]; is_tree: bool or int32 [B].
        tree_mask: int64 [T, W].
        width: rows of a request in the mask; further ones are left out.
        sliding_window: in tokens, 0 for none; it cuts committed positions only.
    Raises:
        BuildError: tensors on CUDA, and cuda-python or NVRTC is missing.
    """
    arguments = (positions, slot_mapping, query_start, context_lens, is_tree.bool(), tree_mask)
    if positions.device.type == "cuda":
        return _launch(arguments, width, length, sliding_window, dtype)
    seen = _seen(arguments, width, length, sliding_window)
    if dtype == torch.bool:
        return seen
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


def _seen(arguments: tuple[Tensor, ...], width: int, length: int, sliding_window: int) -> Tensor:
    positions, slot_mapping, query_start, context_lens, is_tree, masks = arguments
    index, keys = torch.arange(width), torch.arange(length)
    rows = query_start[:-1, None] + index
    exists = rows < query_start[1:, None]
    rows = rows.clamp(max=len(positions) - 1).long()
    exists &= slot_mapping[rows] >= 0
    contexts = context_lens[:, None].long()
    ends = torch.where(is_tree[:, None], contexts, contexts + 1 + index)
    seen = keys < ends[..., None]
    if sliding_window:
        seen &= positions[rows][..., None] - keys < sliding_window
    bit = keys - contexts
    inside = (bit >= 0) & (bit < 64 * masks.shape[1])
    bit = bit.clamp(0, 64 * masks.shape[1] - 1)
    words = masks[rows].gather(2, (bit // 64)[:, None].expand(-1, width, -1))
    in_tree = (words >> (bit % 64)[:, None]) & 1 == 1  # bit 63 too: the shift copies the sign
    seen |= in_tree & (inside & is_tree[:, None])[:, None]
    seen &= exists[..., None]
    seen[..., 0] |= ~seen.any(-1)
    return seen[:, None]


def _launch(
    arguments: tuple[Tensor, ...],
    width: int,
    length: int,
    sliding_window: int,
    dtype: torch.dtype,
) -> Tensor:
    positions, slot_mapping, query_start, context_lens, is_tree, masks = (
        tensor.contiguous() for tensor in arguments
    )
    requests = len(context_lens)
    out = positions.new_empty((requests, 1, width, length), dtype=dtype)
    params = TreeMaskParams(
        out=out.data_ptr(),
        kind=_KINDS[dtype],
        requests=requests,
        rows=len(positions),
        width=width,
        length=length,
        mask_words=masks.shape[1],
        positions=positions.data_ptr(),
        slot_mapping=slot_mapping.data_ptr(),
        query_start=query_start.data_ptr(),
        context_lens=context_lens.data_ptr(),
        is_tree=is_tree.data_ptr(),
        tree_mask=masks.data_ptr(),
        sliding_window=sliding_window,
    )
    kernels, stream = cuda_ops.kernels_on(out)
    kernels.tree_mask(params, stream)
    return out
