"""Calls of the CUDA kernels that sample or draft (``plugins/kernels/sampling.cu``): their chunks
and workspaces. `trtspec.ops.cuda_launch` has the compiler compare the numbers."""

from __future__ import annotations

import ctypes

from trtspec.errors import ConfigError
from trtspec.ops.cuda_params import SampleParams

CHUNK = 2048
"""Tokens of a row that one block samples from."""

ROW_PLAN_BYTES = 96
TOKEN_SCORE_BYTES = 16

_ALIGNMENT = 256  # of the parts of a workspace


def sample_workspace(rows: int, vocab: int) -> int:
    """Bytes of device memory, aligned to 256, that `CudaKernels.sample` works in."""
    return sum(_parts(rows, vocab))


def candidates_workspace(rows: int, vocab: int, k: int) -> int:
    """Bytes of device memory, aligned to 256, that `CudaKernels.draft_candidates` works in."""
    sums = 8 * rows * -(-vocab // CHUNK)
    return sum(_parts(rows, vocab, min(k, CHUNK))) + sums


def _parts(rows: int, vocab: int, listed: int = 1) -> tuple[int, int, int]:
    """Bytes for the maxima of chunks, the plans of rows, the `listed` best tokens of chunks."""
    chunks = rows * -(-vocab // CHUNK)
    sizes = (4 * chunks, ROW_PLAN_BYTES * rows, TOKEN_SCORE_BYTES * chunks * listed)
    maxima, plans, found = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    return maxima, plans, found


class SamplingPlans:
    """A call that samples or drafts from rows of logits, and the layout of its workspace."""

    def __init__(
        self,
        op: str,
        logits: int,
        rows: int,
        vocab: int,
        params: SampleParams,
        token_map: int | None,
        workspace: int,
        listed: int = 1,
    ) -> None:
        if not 1 <= vocab < 1 << 22:
            raise ConfigError(f"{op}: the vocabulary must have 1 to 2^22 - 1 tokens, got {vocab}")
        self.logits, self.rows, self.vocab = logits, rows, vocab
        self.params, self.token_map = params, token_map
        self.chunks = -(-vocab // CHUNK)
        self.aligned = ctypes.c_bool(vocab % 4 == 0 and logits % 16 == 0)
        maxima_bytes, plans_bytes, found_bytes = _parts(rows, vocab, listed)
        self.maxima = workspace
        self.plans = self.maxima + maxima_bytes
        self.found = self.plans + plans_bytes
        self.sums = self.found + found_bytes
