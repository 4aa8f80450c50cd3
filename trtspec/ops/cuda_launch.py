"""The CUDA kernels from Python, on raw device pointers and a stream, without torch's ops: what a
TensorRT session needs between its engines. The sources of ``plugins/kernels`` are compiled for the
running device when they are first used (see `trtspec.ops.cuda_driver`).

The contracts are those of ``plugins/kernels.hpp``. What the launchers there decide (grids, shared
memory, the workspace) is decided here again: they are host code, which NVRTC does not take. Every
number that has to agree is compared by the compiler, and every launch, byte for byte, by
``tests/plugins/test_cuda_launch.py``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.errors import BuildError, ConfigError
from trtspec.ops.cuda_driver import Compiled, Device, Grid, compile_source
from trtspec.ops.cuda_params import (
    CACHES_OF_LAUNCH,
    AcceptParams,
    Caches,
    LogitsMaskParams,
    MaskElement,
    MaskValues8,
    MaskValues16,
    MaskValues32,
    Moves,
    SampleParams,
    Source,
    TreeMaskParams,
    layout_checks,
)
from trtspec.ops.cuda_sampling import CHUNK, ROW_PLAN_BYTES, TOKEN_SCORE_BYTES, SamplingPlans
from trtspec.ops.cuda_trees import TREE_SOURCE, TreeLaunches

_PACKAGE = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = (_PACKAGE / "lib" / "cuda", _PACKAGE.parent)
"""Where the sources may be: in an installed package, or in the repository."""

MAX_COMPACT_PAIRS = 6144
"""The most rows that one kv_compact moves."""

MAX_CANDIDATES = 1024
"""The greatest k of draft_candidates."""

_WARP = 32
_ACCEPT_WARPS = 4
_MASK_THREADS = 256
_LOGITS_THREADS = 256
_MOVE_THREADS = 256
_MOVE_SHARED_BYTES = MAX_COMPACT_PAIRS * 16
_MOVE_WIDEST_SLICE = 512
_CHUNK_THREADS = 256
_PLAN_THREADS = 1024
_PICK_WARPS = 4
_PLAN_MEMORY_BYTES = 49432

_MASKS = {
    # the element in C++, and the bits for seen and hidden
    MaskElement.boolean: ("unsigned char", MaskValues8(seen=1, hidden=0)),
    MaskElement.float32: ("unsigned int", MaskValues32(seen=0, hidden=0xFF800000)),
    MaskElement.bfloat16: ("unsigned short", MaskValues16(seen=0, hidden=0xFF80)),
    MaskElement.float16: ("unsigned short", MaskValues16(seen=0, hidden=0xFC00)),
}


SOURCES = {
    source.name: source
    for source in (
        Source(
            "accept.cu",
            ("accept_walk",),
            (
                ("kWarps", _ACCEPT_WARPS),
                ("kLanes", _WARP),
                *layout_checks("AcceptParams", AcceptParams),
            ),
        ),
        Source(
            "tree_mask.cu",
            ("fill_mask<unsigned char>", "fill_mask<unsigned short>", "fill_mask<unsigned int>"),
            (
                ("kThreads", _MASK_THREADS),
                *((f"int(MaskKind::{kind.cpp_name})", kind.value) for kind in MaskElement),
                *layout_checks("TreeMaskParams", TreeMaskParams),
                *layout_checks("MaskValues<unsigned char>", MaskValues8),
                *layout_checks("MaskValues<unsigned short>", MaskValues16),
                *layout_checks("MaskValues<unsigned int>", MaskValues32),
            ),
        ),
        Source(
            "mask_logits.cu",
            ("add_biases", "forbid"),
            (
                ("kThreads", _LOGITS_THREADS),
                *layout_checks("LogitsMask", LogitsMaskParams),
            ),
        ),
        Source(
            "kv_compact.cu",
            ("move_rows<uint4>", "move_rows<unsigned char>"),
            (
                ("kMaxCompactPairs", MAX_COMPACT_PAIRS),
                ("kThreads", _MOVE_THREADS),
                ("kCachesOfLaunch", CACHES_OF_LAUNCH),
                ("kSharedBytes", _MOVE_SHARED_BYTES),
                ("kWidestSlice", _MOVE_WIDEST_SLICE),
                *layout_checks("Caches", Caches),
                *layout_checks("Moves", Moves),
            ),
        ),
        Source(
            "sampling.cu",
            (
                *("chunk_maxima", "plan_rows", "sample_chunks", "pick_tokens"),
                *("draft_chunks", "merge_candidates"),
            ),
            (
                ("kMaxCandidates", MAX_CANDIDATES),
                ("kChunk", CHUNK),
                ("kChunkThreads", _CHUNK_THREADS),
                ("kPlanThreads", _PLAN_THREADS),
                ("kPickWarps", _PICK_WARPS),
                ("kLanes", _WARP),
                ("sizeof(RowPlan)", ROW_PLAN_BYTES),
                ("sizeof(TokenScore)", TOKEN_SCORE_BYTES),
                ("sizeof(PlanMemory)", _PLAN_MEMORY_BYTES),
                *layout_checks("SamplingRows", SampleParams),
            ),
            # A fused multiply-add rounds once where the CPU rounds twice.
            ("--fmad=false",),
        ),
        TREE_SOURCE,
    )
}


def source_root() -> Path:
    """The folder with ``plugins`` and ``cpp``; BuildError if this installation has none."""
    for root in SOURCE_ROOTS:
        if (root / "plugins" / "kernels.hpp").is_file():
            return root
    raise BuildError(
        f"the sources of the CUDA kernels are in none of {', '.join(map(str, SOURCE_ROOTS))};"
        " install trtspec again: pip install <its source folder>"
    )


def compile_kernels(source: Source, architecture: int) -> Compiled:
    """Compile for a compute capability (major * 10 + minor).

    BuildError if it does not compile or does not agree with this module, or NVRTC is missing.
    """
    root = source_root()
    plugins = root / "plugins"
    checks = "\n".join(
        f'static_assert({expression} == {value}, "cuda_launch.py has {value}");'
        for expression, value in source.checks
    )
    return compile_source(
        source.name,
        (plugins / "kernels" / source.name).read_text()
        + f"\nnamespace trtspec::cuda {{\n{checks}\n}}\n",
        architecture,
        # The stand-ins first: NVRTC has no headers of the host's, and launches nothing.
        (plugins / "nvrtc", plugins, plugins / "kernels", root / "cpp/include", root / "cpp/ops"),
        [f"trtspec::cuda::{kernel}" for kernel in source.kernels],
        source.options,
    )


class CudaKernels(TreeLaunches):
    """The kernels on one device. A source is compiled when the first of its kernels is launched,
    which takes half a second, or some seconds for sampling.

    Pointers are addresses on the device, streams are handles (0: the default stream), launches
    return immediately.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernels: dict[str, Any] = {}

    def tree_mask(self, params: TreeMaskParams, stream: int) -> None:
        """``trtspec::cuda::tree_mask``; `params.kind` is a MaskElement."""
        if params.requests * params.width * params.length <= 0:
            return
        element, values = _MASKS[MaskElement(params.kind)]
        self._launch(
            "tree_mask.cu",
            f"fill_mask<{element}>",
            (params.requests * params.width, 1, 1),
            _MASK_THREADS,
            (params, values),
            stream,
        )

    def accept(self, params: AcceptParams, stream: int) -> None:
        """``trtspec::cuda::accept``."""
        if params.requests <= 0:
            return
        grid = (-(-params.requests // _ACCEPT_WARPS), 1, 1)
        self._launch("accept.cu", "accept_walk", grid, _ACCEPT_WARPS * _WARP, (params,), stream)

    def mask_logits(
        self, logits: int, rows: int, vocab: int, mask: LogitsMaskParams, stream: int
    ) -> None:
        """``trtspec::cuda::mask_logits``."""
        if rows <= 0:
            return
        pointer, size = ctypes.c_void_p(logits), ctypes.c_int64(vocab)
        grids = {
            "add_biases": (-(-mask.num_biases // _LOGITS_THREADS), 1, 1),
            "forbid": (-(-vocab // _LOGITS_THREADS) if mask.allowed else 0, rows, 1),
        }
        for kernel, grid in grids.items():
            if grid[0] > 0:
                arguments = (pointer, size, mask)
                self._launch("mask_logits.cu", kernel, grid, _LOGITS_THREADS, arguments, stream)

    def sample(
        self,
        logits: int,
        rows: int,
        vocab: int,
        params: SampleParams,
        ids: int,
        workspace: int,
        stream: int,
    ) -> None:
        """``trtspec::cuda::sample``; ConfigError for a vocabulary of 2^22 tokens or more."""
        plans = SamplingPlans("sample", logits, rows, vocab, params, None, workspace)
        if rows <= 0:
            return
        chunks, pointer = ctypes.c_int(plans.chunks), ctypes.c_void_p
        found = (pointer(plans.found), ctypes.c_int64(rows), chunks, pointer(ids))
        self._launch_plans(plans, stream)
        of_chunks = (pointer(plans.plans), pointer(plans.maxima), chunks, plans.aligned)
        for kernel, blocks, threads, arguments in (
            ("sample_chunks", rows * plans.chunks, _CHUNK_THREADS, (*of_chunks, found[0])),
            ("pick_tokens", -(-rows // _PICK_WARPS), _PICK_WARPS * _WARP, found),
        ):
            self._launch("sampling.cu", kernel, (blocks, 1, 1), threads, arguments, stream)

    def draft_candidates(
        self,
        logits: int,
        rows: int,
        vocab: int,
        params: SampleParams,
        token_map: int | None,
        k: int,
        ids: int,
        logprobs: int,
        workspace: int,
        stream: int,
    ) -> None:
        """``trtspec::cuda::draft_candidates``; ConfigError for a vocabulary of 2^22 tokens or more,
        or a k that is not 1 to MAX_CANDIDATES."""
        if not 1 <= k <= MAX_CANDIDATES:
            raise ConfigError(f"draft_candidates: k must be 1 to {MAX_CANDIDATES} on CUDA, got {k}")
        listed = min(k, CHUNK)
        plans = SamplingPlans(
            "draft_candidates", logits, rows, vocab, params, token_map, workspace, listed
        )
        if rows <= 0:
            return
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        held, found, sums = pointer(plans.plans), pointer(plans.found), pointer(plans.sums)
        chunks, count = integer(plans.chunks), integer(listed)
        self._launch_plans(plans, stream)
        for kernel, blocks, arguments in (
            (
                "draft_chunks",
                rows * plans.chunks,
                (held, chunks, plans.aligned, count, found, sums),
            ),
            (
                "merge_candidates",
                rows,
                (*(held, found, sums, chunks, count), integer(k), pointer(ids), pointer(logprobs)),
            ),
        ):
            self._launch("sampling.cu", kernel, (blocks, 1, 1), _CHUNK_THREADS, arguments, stream)

    def kv_compact(
        self,
        caches: Sequence[int],
        row_bytes: int,
        src_slots: int,
        dst_slots: int,
        pairs: int,
        stream: int,
    ) -> None:
        """``trtspec::cuda::kv_compact``: in every cache, row src_slots[i] moves to dst_slots[i].

        ConfigError for more than MAX_COMPACT_PAIRS pairs.
        """
        if pairs > MAX_COMPACT_PAIRS:
            raise ConfigError(
                f"one kv_compact moves at most {MAX_COMPACT_PAIRS} rows, got {pairs};"
                " pairs of different requests may go in calls of their own"
            )
        if pairs <= 0 or row_bytes <= 0:
            return
        for first in range(0, len(caches), CACHES_OF_LAUNCH):
            some = caches[first : first + CACHES_OF_LAUNCH]
            vectors = row_bytes % 16 == 0 and all(cache % 16 == 0 for cache in some)
            unit = 16 if vectors else 1
            slice_bytes = _MOVE_WIDEST_SLICE
            while slice_bytes > 16 and slice_bytes * pairs > _MOVE_SHARED_BYTES // 2:
                slice_bytes //= 2
            slice_bytes = min(slice_bytes, -(-row_bytes // unit) * unit)
            moves = Moves(
                src=src_slots,
                dst=dst_slots,
                pairs=pairs,
                row_units=row_bytes // unit,
                slice_units=slice_bytes // unit,
            )
            held = Caches()
            held.data[: len(some)] = some
            self._launch(
                "kv_compact.cu",
                f"move_rows<{'uint4' if vectors else 'unsigned char'}>",
                (-(-moves.row_units // moves.slice_units), len(some), 1),
                _MOVE_THREADS,
                (held, moves),
                stream,
                slice_bytes * pairs,
            )

    def _launch_plans(self, plans: SamplingPlans, stream: int) -> None:
        """Compute the maxima of chunks and the plans of rows into the workspace."""
        pointer, chunks = ctypes.c_void_p, ctypes.c_int(plans.chunks)
        of_rows = (pointer(plans.logits), ctypes.c_int64(plans.vocab))
        maxima, token_map = pointer(plans.maxima), pointer(plans.token_map)
        for kernel, blocks, threads, shared_bytes, arguments in (
            (
                "chunk_maxima",
                plans.rows * plans.chunks,
                _CHUNK_THREADS,
                0,
                (*of_rows, chunks, plans.aligned, maxima),
            ),
            (
                "plan_rows",
                plans.rows,
                _PLAN_THREADS,
                _PLAN_MEMORY_BYTES,
                (*of_rows, plans.params, token_map, maxima, chunks, pointer(plans.plans)),
            ),
        ):
            grid = (blocks, 1, 1)
            self._launch("sampling.cu", kernel, grid, threads, arguments, stream, shared_bytes)

    def _launch(
        self,
        source: str,
        kernel: str,
        grid: Grid,
        threads: int,
        arguments: Sequence[Any],
        stream: int,
        shared_bytes: int = 0,
    ) -> None:
        name = f"trtspec::cuda::{kernel}"
        if name not in self._kernels:
            compiled = compile_kernels(SOURCES[source], self._device.architecture)
            self._kernels |= self._device.load(compiled)
        self._device.launch(self._kernels[name], grid, threads, shared_bytes, stream, arguments)


@cache
def kernels_of(device: int) -> CudaKernels:
    """The kernels on device `device`, one object per process.

    BuildError if cuda-python, NVRTC, the driver or the device is missing.
    """
    return CudaKernels(Device(device))
