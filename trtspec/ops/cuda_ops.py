"""The ops between engines on CUDA tensors if their compiled library is missing, as with TensorRT
from PyPI: `mask_logits`, `sample`, `draft_candidates`, `accept`, `kv_compact` and those that grow
trees, launched through cuda-python.

The kernels are those of the library, compiled on first use (see `cuda_launch`), on torch's current
stream. Arguments are only checked for devices and dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from trtspec.ops import cuda_driver, native
from trtspec.ops.cuda_launch import CudaKernels, kernels_of
from trtspec.ops.cuda_params import (
    AcceptParams,
    KeptTreeParams,
    LogitsMaskParams,
    MarginalTreesParams,
    SampleParams,
    TreeBeamParams,
    TreeChildrenParams,
    TreePoolParams,
)
from trtspec.ops.cuda_sampling import candidates_workspace, sample_workspace
from trtspec.ops.cuda_trees import marginal_trees_workspace
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns


def register_cuda_ops() -> bool:
    """Let ``torch.ops.trtspec`` run these on CUDA tensors, unless it already does; returns whether
    it does.

    False if cuda-python or NVRTC is missing.
    """
    return native.HAS_CUDA_OPS or _register()


@cache
def _register() -> bool:
    if not cuda_driver.is_available():
        return False
    torch.library.impl("trtspec::mask_logits", "cuda", mask_logits)
    torch.library.impl("trtspec::sample", "cuda", sample)
    torch.library.impl("trtspec::draft_candidates", "cuda", draft_candidates)
    torch.library.impl("trtspec::accept", "cuda", accept)
    torch.library.impl("trtspec::kv_compact", "cuda", kv_compact)
    torch.library.impl("trtspec::expand_tree", "cuda", expand_tree)
    torch.library.impl("trtspec::keep_best", "cuda", keep_best)
    torch.library.impl("trtspec::marginal_trees", "cuda", marginal_trees)
    return True


def mask_logits(
    logits: Tensor,
    allowed: Tensor | None = None,
    bias_rows: Tensor | None = None,
    bias_ids: Tensor | None = None,
    bias_values: Tensor | None = None,
) -> None:
    """`trtspec.ops.logits_mask.mask_logits`."""
    if not logits.is_contiguous():
        raise RuntimeError("mask_logits: the logits must be contiguous")
    held = _held(
        "mask_logits",
        logits=(logits, torch.float32),
        allowed=(allowed, torch.int32),
        bias_rows=(bias_rows, torch.int64),
        bias_ids=(bias_ids, torch.int64),
        bias_values=(bias_values, torch.float32),
    )
    del held["logits"]
    params = LogitsMaskParams(**{name: column.data_ptr() for name, column in held.items()})
    params.words = held["allowed"].shape[1] if "allowed" in held else 0
    params.num_biases = len(held["bias_ids"]) if "bias_ids" in held else 0
    kernels, stream = kernels_on(logits)
    rows, vocab = logits.shape
    kernels.mask_logits(logits.data_ptr(), rows, vocab, params, stream)


def sample(logits: Tensor, *columns: Tensor) -> Tensor:
    """`trtspec.ops.sampling.sample`."""
    logits, *of_rows = _checked("sample", (logits, *columns), (torch.float32, *COLUMN_DTYPES))
    rows, vocab = logits.shape
    ids = logits.new_empty(rows, dtype=torch.int64)
    scratch = logits.new_empty(sample_workspace(rows, vocab), dtype=torch.uint8)
    params = _params(of_rows)
    kernels, stream = kernels_on(logits)
    kernels.sample(
        logits.data_ptr(), rows, vocab, params, ids.data_ptr(), scratch.data_ptr(), stream
    )
    return ids


def draft_candidates(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    output_index: Tensor,
    token_map: Tensor | None,
    k: int,
) -> tuple[Tensor, Tensor]:
    """`trtspec.ops.sampling.draft_candidates`."""
    columns = (temperature, top_k, top_p, min_p, seed, sample_index, output_index)
    given, kinds = [logits, *columns], [torch.float32, *COLUMN_DTYPES]
    if token_map is not None:
        given.append(token_map)
        kinds.append(torch.int64)
    logits, *of_rows = _checked("draft_candidates", given, kinds)
    rows, vocab = logits.shape
    mapped = of_rows.pop() if token_map is not None else None
    ids = logits.new_empty((rows, k), dtype=torch.int64)
    logprobs = logits.new_empty((rows, k))
    scratch = logits.new_empty(candidates_workspace(rows, vocab, k), dtype=torch.uint8)
    params = _params(of_rows)
    kernels, stream = kernels_on(logits)
    kernels.draft_candidates(
        logits.data_ptr(),
        rows,
        vocab,
        params,
        None if mapped is None else mapped.data_ptr(),
        k,
        ids.data_ptr(),
        logprobs.data_ptr(),
        scratch.data_ptr(),
        stream,
    )
    return ids, logprobs


def accept(
    sampled: Tensor,
    tokens: Tensor,
    parents: Tensor,
    row_start: Tensor,
    forced: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`trtspec.ops.acceptance.accept`, as it is on CUDA: P is R."""
    kinds = (torch.int64, torch.int64, torch.int32, torch.int32)
    sampled, tokens, parents, row_start = _checked(
        "accept", (sampled, tokens, parents, row_start), kinds
    )
    if forced is not None:
        (forced,) = _checked("accept", (forced,), (torch.int32,))
    requests, width = len(row_start) - 1, len(sampled)
    accepted_rows = sampled.new_empty((requests, width), dtype=torch.int32)
    num_emitted = sampled.new_empty(requests, dtype=torch.int32)
    params = AcceptParams(
        sampled=sampled.data_ptr(),
        tokens=tokens.data_ptr(),
        parents=parents.data_ptr(),
        row_start=row_start.data_ptr(),
        requests=requests,
        width=width,
        accepted_rows=accepted_rows.data_ptr(),
        num_emitted=num_emitted.data_ptr(),
        forced=0 if forced is None else forced.data_ptr(),
    )
    kernels, stream = kernels_on(sampled)
    kernels.accept(params, stream)
    return accepted_rows, num_emitted


def kv_compact(caches: Sequence[Tensor], src_slots: Tensor, dst_slots: Tensor) -> None:
    """`trtspec.ops.kv_compact.kv_compact`."""
    source, wanted = _checked("kv_compact", (src_slots, dst_slots), (torch.int64,) * 2)
    kernels, stream = kernels_on(source)
    by_size: dict[int, list[int]] = {}
    for buffer in caches:
        if not buffer.is_contiguous():
            raise RuntimeError("kv_compact: the caches must be contiguous")
        row_bytes = buffer[0, 0].numel() * buffer.itemsize
        by_size.setdefault(row_bytes, []).append(buffer.data_ptr())
    for row_bytes, addresses in by_size.items():
        kernels.kv_compact(
            addresses, row_bytes, source.data_ptr(), wanted.data_ptr(), len(source), stream
        )


def expand_tree(
    pool_tokens: Tensor,
    pool_parents: Tensor,
    pool_scores: Tensor,
    begin: int,
    tokens: Tensor,
    gains: Tensor,
    above: Tensor | None,
    width: int,
    chosen: Tensor | None,
    first_bit: int,
    words: int,
    seen_above: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`trtspec.ops.build_tree.expand_tree`, as the op takes it."""
    pool = pool_tokens, pool_parents, pool_scores
    grown = _Growth("expand_tree", pool, begin, tokens, gains, above, chosen, seen_above)
    requests = len(pool_tokens)
    fed, lanes = pool_tokens.new_empty((2, requests, width)).unbind()
    index = pool_parents.new_empty((requests, width))
    seen = pool_tokens.new_empty((requests, width, words))
    params = TreeBeamParams(
        width=width,
        chosen=grown.address("chosen"),
        tokens=fed.data_ptr(),
        index=index.data_ptr(),
        lanes=lanes.data_ptr(),
        first_bit=first_bit,
        words=words,
        seen_above=grown.address("seen_above"),
        seen=seen.data_ptr(),
    )
    kernels, stream = kernels_on(pool_tokens)
    kernels.expand_tree(grown.pool, grown.children, params, stream)
    return fed, index, lanes, seen


def keep_best(
    pool_tokens: Tensor,
    pool_parents: Tensor,
    pool_scores: Tensor,
    begin: int,
    tokens: Tensor,
    gains: Tensor,
    above: Tensor | None,
    nodes: int,
    chosen: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`trtspec.ops.build_tree.keep_best`, as the op takes it."""
    pool = pool_tokens, pool_parents, pool_scores
    grown = _Growth("keep_best", pool, begin, tokens, gains, above, chosen)
    kept, parents, scores = (x.new_empty((len(x), nodes)) for x in pool)
    params = KeptTreeParams(
        nodes=nodes,
        chosen=grown.address("chosen"),
        tokens=kept.data_ptr(),
        parents=parents.data_ptr(),
        scores=scores.data_ptr(),
    )
    kernels, stream = kernels_on(pool_tokens)
    kernels.keep_best(grown.pool, grown.children, params, stream)
    return kept, parents, scores


class _Growth:
    """A pool and the children that enter it, as the kernels take them while this lives."""

    def __init__(
        self,
        op: str,
        pool: Sequence[Tensor],
        begin: int,
        tokens: Tensor,
        gains: Tensor,
        above: Tensor | None,
        chosen: Tensor | None,
        seen_above: Tensor | None = None,
    ) -> None:
        if not all(x.is_contiguous() for x in pool):
            raise RuntimeError(f"{op}: the pool must be contiguous")
        requests, size = pool[0].shape
        self._held = _held(
            op,
            pool_tokens=(pool[0], torch.int64),
            pool_parents=(pool[1], torch.int32),
            pool_scores=(pool[2], torch.float32),
            tokens=(tokens, torch.int64),
            gains=(gains, torch.float32),
            above=(above, torch.int32),
            chosen=(chosen, torch.int64),
            seen_above=(seen_above, torch.int64),
        )
        columns = {name: self.address(f"pool_{name}") for name in ("tokens", "parents", "scores")}
        self.pool = TreePoolParams(**columns, requests=requests, size=size)
        self.children = TreeChildrenParams(
            begin=begin,
            lanes=1 if above is None else above.shape[1],
            branching=tokens.shape[1],
            tokens=self.address("tokens"),
            gains=self.address("gains"),
            above=self.address("above"),
        )

    def address(self, name: str) -> int:
        """Of an input; 0 for one that is not given."""
        return self._held[name].data_ptr() if name in self._held else 0


def marginal_trees(
    tokens: Tensor,
    gains: Tensor,
    starts: Tensor,
    lanes: Tensor,
    ranks: Tensor,
    nodes: int,
    keep_all: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`trtspec.ops.build_tree.marginal_trees`."""
    held = _held(
        "marginal_trees",
        tokens=(tokens, torch.int64),
        gains=(gains, torch.float32),
        starts=(starts, torch.int32),
        lanes=(lanes, torch.int32),
        ranks=(ranks, torch.int32),
    )
    requests, depths, count = tokens.shape
    kept, parents, scores = (x.new_empty((requests, nodes)) for x in (tokens, lanes, gains))
    params = MarginalTreesParams(
        requests=requests,
        depths=depths,
        count=count,
        keep_all=keep_all,
        nodes=nodes,
        out_tokens=kept.data_ptr(),
        out_parents=parents.data_ptr(),
        out_scores=scores.data_ptr(),
        **{name: tensor.data_ptr() for name, tensor in held.items()},
    )
    scratch = tokens.new_empty(marginal_trees_workspace(requests, len(lanes)), dtype=torch.uint8)
    kernels, stream = kernels_on(tokens)
    kernels.marginal_trees(params, len(lanes), scratch.data_ptr(), stream)
    return kept, parents, scores


def _params(columns: Sequence[Tensor]) -> SampleParams:
    named = zip(SamplingColumns._fields, columns, strict=True)
    return SampleParams(**{name: column.data_ptr() for name, column in named})


def _held(op: str, **given: tuple[Tensor | None, torch.dtype]) -> dict[str, Tensor]:
    """Those that are not None, as `_checked` returns them."""
    there = {name: (x, kind) for name, (x, kind) in given.items() if x is not None}
    tensors, kinds = zip(*there.values(), strict=True)
    return dict(zip(there, _checked(op, tensors, kinds), strict=True))


def _checked(op: str, tensors: Sequence[Tensor], kinds: Sequence[torch.dtype]) -> list[Tensor]:
    """The tensors, contiguous; RuntimeError for one on another device or of another dtype."""
    for tensor, kind in zip(tensors, kinds, strict=True):
        if tensor.device != tensors[0].device or tensor.dtype != kind:
            raise RuntimeError(
                f"{op}: a tensor is {tensor.dtype} on {tensor.device}, it must be {kind} on "
                f"{tensors[0].device}"
            )
    return [tensor.contiguous() for tensor in tensors]


def kernels_on(tensor: Tensor) -> tuple[CudaKernels, int]:
    """The kernels on a tensor's device, and torch's current stream there."""
    device = tensor.device
    return kernels_of(device.index or 0), int(torch.cuda.current_stream(device).cuda_stream)
